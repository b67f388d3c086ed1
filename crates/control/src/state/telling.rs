//! What the members of a communicator tell each other: what they do, and who is late.
//!
//! Each tells a few others, its companions, and these pass on only what is new: the first to wait in a call, and the
//! first to miss somebody. So a rank has as much to say as its neighbours are many, however many ranks wait.

use std::sync::Arc;
use std::time::Instant;

use super::State;
use crate::outbound::{Class, Subject};
use crate::pace::waits_for;
use crate::strays::Stray;
use crate::topology::distance;
use crate::wire::{self, Frame, Progress, Report, Told, WaitingFor, What};

impl State {
    /// Something arrived that is told to `to`.
    pub(super) fn hear(&mut self, to: u32, told: Told, now: Instant) {
        // What comes back from this rank is no news to anyone.
        if told.origin == self.me {
            return;
        }
        if to == self.me {
            self.listen(told, now);
        } else {
            self.pass_on(to, &told);
        }
    }

    /// Takes note of what is told to this rank.
    pub(super) fn listen(&mut self, told: Told, now: Instant) {
        let context = told.what.context();
        let Some(roll) = self.rolls.get_mut(&context) else {
            self.strays.keep(context, Stray::Told(told));
            return;
        };
        let Some(rank) = roll.view.rank(told.origin) else {
            return;
        };
        if !roll.is_new(rank, &told) {
            return;
        }
        match told.what {
            What::Progress(progress) => {
                let fault = roll.progress(rank, &progress, now);
                if roll.waits(&progress, now) {
                    self.tell_companions(context, &told);
                }
                self.answer(context, told.origin, progress.waiting, now);
                self.raise_some(context, fault);
            }
            What::Late(report) => {
                if roll.hear_of(report, now) {
                    self.tell_companions(context, &told);
                }
            }
        }
        self.report_late(now);
    }

    /// Says where this rank is, to those who look after it, and to whom waits for it.
    fn answer(&mut self, context: u64, origin: u32, waiting: Option<WaitingFor>, now: Instant) {
        let Some(roll) = self.rolls.get_mut(&context).filter(|_| waiting.is_some()) else {
            return;
        };
        let own = roll.own();
        let to_all = roll.owes_answer(now);
        let looks_after = roll.companions().any(|companion| companion == origin);
        let to_origin = waits_for(waiting, self.me) && !(to_all && looks_after);
        if to_all || to_origin {
            let told = self.told(What::Progress(own));
            if to_all {
                self.tell_companions(context, &told);
            }
            if to_origin {
                self.pass_on(origin, &told);
            }
        }
    }

    /// Tells all who need to know that this rank waits.
    pub(crate) fn announce(
        &mut self,
        context: u64,
        sequence: u64,
        signature: [u64; 2],
        waiting: WaitingFor,
        now: Instant,
    ) {
        let Some(roll) = self.rolls.get_mut(&context) else {
            return;
        };
        let progress = roll.announce(sequence, signature, waiting, now);
        // The companions pass it on, as far as it is new.
        roll.waits(&progress, now);
        let told = self.told(What::Progress(progress));
        self.tell_companions(context, &told);
        if let WaitingFor::Rank(whom) = waiting {
            self.ask(context, whom, &told);
        }
        self.inspect(context, sequence, signature);
        self.report_late(now);
    }

    /// Has the rank that this one waits for in a message between the two say where it is.
    fn ask(&mut self, context: u64, whom: u32, told: &Told) {
        let What::Progress(Progress { sequence, .. }) = told.what else {
            return;
        };
        let roll = self.rolls.get(&context);
        let knows = roll.is_none_or(|roll| roll.companions().any(|other| other == whom));
        if sequence & crate::fault::POINT_TO_POINT != 0 && !knows {
            self.pass_on(whom, told);
        }
    }

    /// Tells the others which companions are late for what somebody waits in.
    pub(super) fn report_late(&mut self, now: Instant) {
        let reports: Vec<Report> = self
            .rolls
            .values_mut()
            .flat_map(|roll| roll.reports(now))
            .collect();
        for report in reports {
            let told = self.told(What::Late(report));
            self.tell_companions(report.context, &told);
        }
    }

    /// Something from this rank, numbered.
    fn told(&mut self, what: What) -> Told {
        self.telling += 1;
        Told {
            origin: self.me,
            counter: self.telling,
            what,
        }
    }

    fn tell_companions(&mut self, context: u64, told: &Told) {
        let Some(roll) = self.rolls.get(&context) else {
            return;
        };
        let companions = roll.companions().filter(|&to| to != told.origin);
        let companions: Vec<u32> = companions.collect();
        for to in companions {
            self.pass_on(to, told);
        }
    }

    /// Sends something a hop closer to a rank. Where there is no way, it is lost: it is told again.
    fn pass_on(&mut self, to: u32, told: &Told) {
        let size = self.names.len() as u32;
        let own = distance(self.me, to, size);
        let links = self
            .links
            .iter_mut()
            .filter(|link| link.open && !link.closed());
        let Some(link) = links.min_by_key(|link| distance(link.peer, to, size)) else {
            return;
        };
        if distance(link.peer, to, size) < own {
            let about = match told.what {
                What::Progress(_) => None,
                What::Late(report) => Some(report.rank),
            };
            let subject = Subject {
                to,
                origin: told.origin,
                context: told.what.context(),
                about,
            };
            let told = told.clone();
            let frame: Arc<[u8]> = wire::encode(&Frame::Told { to, told }).into();
            link.outbound.push(Class::Told(subject), &frame);
            link.flush();
        }
    }
}
