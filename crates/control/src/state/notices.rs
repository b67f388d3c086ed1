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
use crate::wire::{self, Content, Frame, Notice, Progress, Report, WaitingFor};

impl State {
    /// Something arrived that is told to `to`.
    pub(super) fn route_notice(&mut self, to: u32, notice: Notice, now: Instant) {
        // What comes back from this rank is no news to anyone.
        if notice.origin == self.me {
            return;
        }
        if to == self.me {
            self.receive_notice(notice, now);
        } else {
            self.forward(to, &notice);
        }
    }

    /// Takes note of what is told to this rank.
    pub(super) fn receive_notice(&mut self, notice: Notice, now: Instant) {
        let context = notice.content.context();
        let Some(roster) = self.rosters.get_mut(&context) else {
            self.strays.keep(context, Stray::Notice(notice));
            return;
        };
        let Some(rank) = roster.view.rank(notice.origin) else {
            return;
        };
        if !roster.is_new(rank, &notice) {
            return;
        }
        match notice.content {
            Content::Progress(progress) => {
                let fault = roster.progress(rank, &progress, now);
                if roster.waits(&progress, now) {
                    self.notify_companions(context, &notice);
                }
                self.answer(context, notice.origin, progress.waiting, now);
                self.raise_some(context, fault);
            }
            Content::Late(report) => {
                if roster.record_report(report, now) {
                    self.notify_companions(context, &notice);
                }
            }
        }
        self.report_late(now);
    }

    /// Says where this rank is, to those who look after it, and to whom waits for it.
    fn answer(&mut self, context: u64, origin: u32, waiting: Option<WaitingFor>, now: Instant) {
        let Some(roster) = self.rosters.get_mut(&context).filter(|_| waiting.is_some()) else {
            return;
        };
        let own = roster.own();
        let to_all = roster.should_answer(now);
        let looks_after = roster.companions().any(|companion| companion == origin);
        let to_origin = waits_for(waiting, self.me) && !(to_all && looks_after);
        if to_all || to_origin {
            let notice = self.new_notice(Content::Progress(own));
            if to_all {
                self.notify_companions(context, &notice);
            }
            if to_origin {
                self.forward(origin, &notice);
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
        let Some(roster) = self.rosters.get_mut(&context) else {
            return;
        };
        let progress = roster.announce(sequence, signature, waiting, now);
        // The companions pass it on, as far as it is new.
        roster.waits(&progress, now);
        let notice = self.new_notice(Content::Progress(progress));
        self.notify_companions(context, &notice);
        if let WaitingFor::Rank(whom) = waiting {
            self.notify_awaited(context, whom, &notice);
        }
        self.inspect(context, sequence, signature);
        self.report_late(now);
    }

    /// Has the rank that this one waits for in a message between the two say where it is.
    fn notify_awaited(&mut self, context: u64, whom: u32, notice: &Notice) {
        let Content::Progress(Progress { sequence, .. }) = notice.content else {
            return;
        };
        let roster = self.rosters.get(&context);
        let knows = roster.is_none_or(|roster| roster.companions().any(|other| other == whom));
        if sequence & crate::fault::POINT_TO_POINT != 0 && !knows {
            self.forward(whom, notice);
        }
    }

    /// Tells the others which companions are late for what somebody waits in.
    pub(super) fn report_late(&mut self, now: Instant) {
        let reports: Vec<Report> = self
            .rosters
            .values_mut()
            .flat_map(|roster| roster.reports(now))
            .collect();
        for report in reports {
            let notice = self.new_notice(Content::Late(report));
            self.notify_companions(report.context, &notice);
        }
    }

    /// Something from this rank, numbered.
    fn new_notice(&mut self, content: Content) -> Notice {
        self.notices_sent += 1;
        Notice {
            origin: self.me,
            counter: self.notices_sent,
            content,
        }
    }

    fn notify_companions(&mut self, context: u64, notice: &Notice) {
        let Some(roster) = self.rosters.get(&context) else {
            return;
        };
        let companions = roster.companions().filter(|&to| to != notice.origin);
        let companions: Vec<u32> = companions.collect();
        for to in companions {
            self.forward(to, notice);
        }
    }

    /// Sends something a hop closer to a rank. Where there is no way, it is lost: it is told again.
    fn forward(&mut self, to: u32, notice: &Notice) {
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
            let about = match notice.content {
                Content::Progress(_) => None,
                Content::Late(report) => Some(report.rank),
            };
            let subject = Subject {
                to,
                origin: notice.origin,
                context: notice.content.context(),
                about,
            };
            let notice = notice.clone();
            let frame: Arc<[u8]> = wire::encode(&Frame::Notice { to, notice }).into();
            link.outbound.push(Class::Notice(subject), &frame);
            link.flush();
        }
    }
}
