//! Notices between the members of a communicator: their progress, and which members are late.
//!
//! Each member sends its notices to a few others, its companions. These forward only what is new:
//! the first member that waits in a call, and the first report that a member is late. So the
//! traffic of a rank is bounded by the number of its neighbours, however many ranks wait.

use std::sync::Arc;
use std::time::Instant;

use super::ControlState;
use crate::fault::is_apart;
use crate::neighbour::Neighbour;
use crate::outbound::{About, Class, Subject};
use crate::pace::waits_for;
use crate::repair::NextHop;
use crate::strays::Stray;
use crate::topology::distance;
use crate::wire::{self, Content, Frame, LateReport, Notice, Progress, WaitingFor};

impl ControlState {
    /// Handles a notice for `to` that has arrived here.
    pub(super) fn route_notice(&mut self, to: u32, notice: Notice, now: Instant) {
        // This rank's own notices may come back. They are dropped.
        if notice.origin == self.me {
            return;
        }
        if to == self.me {
            self.receive_notice(notice, now);
        } else {
            self.forward(to, &notice);
        }
    }

    /// Records a notice that is addressed to this rank.
    pub(super) fn receive_notice(&mut self, notice: Notice, now: Instant) {
        let context = notice.content.context();
        let Some(table) = self.tables.get_mut(&context) else {
            self.strays.keep(context, Stray::Notice(notice));
            return;
        };
        let Some(rank) = table.view.rank(notice.origin) else {
            return;
        };
        if !table.is_new(rank, &notice) {
            return;
        }
        match notice.content {
            Content::Progress(progress) => {
                let fault = table.progress(rank, &progress, now);
                if table.waits(&progress, now) {
                    self.notify_companions(context, &notice);
                }
                self.answer(context, notice.origin, progress.waiting, now);
                self.raise_some(context, fault);
            }
            Content::Late(report) => {
                if table.record_report(report, now) {
                    self.notify_companions(context, &notice);
                }
            }
            Content::Query { .. } => self.answer_query(context, notice.origin, now),
            Content::Answer(answer) => table.record_answer(rank, answer, now),
            Content::Claim(claim) => self.receive_claim(notice.origin, rank, &claim),
        }
        self.report_late(now);
    }

    /// Answers a member that waits: announces this rank's progress to the companions if it was not
    /// announced lately, and to `origin` if that waits for this rank.
    fn answer(&mut self, context: u64, origin: u32, waiting: Option<WaitingFor>, now: Instant) {
        let Some(table) = self.tables.get_mut(&context).filter(|_| waiting.is_some()) else {
            return;
        };
        let own = table.own();
        let to_all = table.should_answer(now);
        let looks_after = table.companions().any(|companion| companion == origin);
        // An answer would replace an announcement that is still queued.
        let is_told = looks_after && (to_all || table.has_told_wait(now));
        let to_origin = waits_for(waiting, self.me) && !is_told;
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

    /// Announces that this rank waits, to its companions and to the rank that it waits for.
    pub(crate) fn announce(
        &mut self,
        context: u64,
        sequence: u64,
        signature: [u64; 2],
        waiting: WaitingFor,
        now: Instant,
    ) {
        let Some(table) = self.tables.get_mut(&context) else {
            return;
        };
        let progress = table.announce(sequence, signature, waiting, now);
        // Remembers that a member waits in this call, and that the companions have just been told.
        // The answer does not matter: this rank's own notices always go out.
        table.waits(&progress, now);
        let notice = self.new_notice(Content::Progress(progress));
        self.notify_companions(context, &notice);
        if let WaitingFor::Rank(whom) = waiting {
            self.notify_awaited(context, whom, &notice);
        }
        self.inspect(context, sequence, signature);
        self.report_late(now);
    }

    /// Asks the rank that this one waits for in a message or on its device to announce its
    /// progress.
    fn notify_awaited(&mut self, context: u64, whom: u32, notice: &Notice) {
        let Content::Progress(Progress { sequence, .. }) = notice.content else {
            return;
        };
        let table = self.tables.get(&context);
        let knows = table.is_none_or(|table| table.companions().any(|other| other == whom));
        if is_apart(sequence) && !knows {
            self.forward(whom, notice);
        }
    }

    /// Reports the companions that are late for a collective that some member waits in.
    pub(super) fn report_late(&mut self, now: Instant) {
        let reports: Vec<LateReport> = self
            .tables
            .values_mut()
            .flat_map(|table| table.reports(now))
            .collect();
        for report in reports {
            let notice = self.new_notice(Content::Late(report));
            self.notify_companions(report.context, &notice);
        }
    }

    /// A notice from this rank, with the next number.
    pub(super) fn new_notice(&mut self, content: Content) -> Notice {
        self.notices_sent += 1;
        Notice {
            origin: self.me,
            counter: self.notices_sent,
            content,
        }
    }

    fn notify_companions(&mut self, context: u64, notice: &Notice) {
        let Some(table) = self.tables.get(&context) else {
            return;
        };
        let companions = table.companions().filter(|&to| to != notice.origin);
        let companions: Vec<u32> = companions.collect();
        for to in companions {
            self.forward(to, notice);
        }
    }

    /// Sends a notice one hop closer to `to`. If no neighbour is closer, it is dropped: it is
    /// announced again later. All ranks of this process are one hop away.
    pub(super) fn forward(&mut self, to: u32, notice: &Notice) {
        if let Some(board) = &self.board {
            let notice = notice.clone();
            return board.post(Frame::Notice { to, notice });
        }
        let next = self.next_hop(to);
        let mut neighbours = self.neighbours.iter_mut();
        if let Some(neighbour) = neighbours.find(|neighbour| Some(neighbour.peer) == next) {
            let about = match notice.content {
                Content::Progress(_) => About::Origin,
                Content::Late(report) => About::Late(report.rank),
                Content::Query { .. } => About::Query,
                Content::Answer(_) => About::Answer,
                Content::Claim(_) => About::Claim,
            };
            let subject = Subject {
                to,
                origin: notice.origin,
                context: notice.content.context(),
                about,
            };
            let notice = notice.clone();
            let frame: Arc<[u8]> = wire::encode(&Frame::Notice { to, notice }).into();
            neighbour.outbound.push(Class::Replaceable(subject), &frame);
            neighbour.flush();
        }
    }

    /// The neighbour that is closer to `to`, if its stream is open.
    fn next_hop(&self, to: u32) -> Option<u32> {
        let size = self.names.len() as u32;
        let is_open = |neighbour: &&Neighbour| neighbour.is_reading && !neighbour.is_done_writing();
        let mut open = self.neighbours.iter().filter(is_open).map(|it| it.peer);
        let gone = |rank: u32| self.departures.contains_key(&rank);
        let dial = self.redial.as_ref().map(|redial| &redial.dial);
        match dial.map_or(NextHop::Closer, |dial| dial.next_hop(to, &gone)) {
            NextHop::By(next) => open.find(|&peer| Some(peer) == next),
            NextHop::Closer => {
                let next = open.min_by_key(|&peer| distance(peer, to, size));
                next.filter(|&peer| distance(peer, to, size) < distance(self.me, to, size))
            }
        }
    }
}
