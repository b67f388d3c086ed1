//! This rank's knowledge about the members of one communicator: who waits, who is late, who has
//! left. It decides what to tell, and does not send.

mod late;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::comparison::{Claim, Compared};
use crate::fault::{Fault, is_apart};
use crate::leave::Leave;
use crate::member_record::{MemberRecord, Operation};
use crate::pace::{Inquiries, Pace, Topic};
use crate::proposal::Proposal;
use crate::standing::{Answer, KINDS, Wait};
use crate::topology::neighbours;
use crate::view::View;
use crate::wire::{LateReport, Notice, Progress, WaitingFor};

/// A rank that does not wait answers announcements at most once per this time.
const ANSWER_EVERY: Duration = Duration::from_millis(900);
/// A member that was not heard for this long is silent: members that wait announce it once a
/// second, and the others answer as often.
const STALE_AFTER: Duration = Duration::from_millis(2500);

pub(crate) struct MemberTable {
    pub(crate) view: Arc<View>,
    /// When this rank's progress was last announced.
    announced_at: Option<Instant>,
    /// By communicator rank. This rank's own announcements are recorded, too.
    heard: Vec<MemberRecord>,
    /// The members, by communicator rank, with which this one exchanges notices.
    companions: Vec<u32>,
    /// How members want to go on after this communicator, by their ranks in the world.
    pub(crate) proposals: HashMap<u32, Proposal>,
    pace: Pace,
    inquiries: Inquiries,
    /// How many questions about calls of device memory this rank has asked.
    questions: u64,
}

impl MemberTable {
    pub(crate) fn new(view: Arc<View>) -> Self {
        let heard = vec![MemberRecord::default(); view.members.len()];
        let companions = neighbours(view.me.rank as u32, view.members.len() as u32);
        Self {
            view,
            announced_at: None,
            heard,
            companions,
            proposals: HashMap::new(),
            pace: Pace::default(),
            inquiries: Inquiries::default(),
            questions: 0,
        }
    }

    /// World ranks of the members with which this one exchanges notices.
    pub(crate) fn companions(&self) -> impl Iterator<Item = u32> + use<'_> {
        let members = &self.view.members;
        self.companions.iter().map(|&rank| members[rank as usize])
    }

    /// Whether a member's notice is new.
    pub(crate) fn is_new(&mut self, rank: u32, notice: &Notice) -> bool {
        let heard = self.heard.get_mut(rank as usize);
        heard.is_some_and(|heard| heard.is_new(notice))
    }

    /// Records a member's progress. Returns a fault if it differs from what this rank called.
    pub(crate) fn progress(
        &mut self,
        rank: u32,
        progress: &Progress,
        now: Instant,
    ) -> Option<Fault> {
        let heard = self.heard.get_mut(rank as usize)?;
        heard.update(progress, now);
        self.schedule_inspection();
        let operation = Operation {
            sequence: progress.sequence,
            signature: progress.signature,
        };
        let mine = self.view.called(operation.sequence)?;
        (mine != operation.signature).then(|| self.mismatch(rank, operation, mine))
    }

    /// Records that a member, perhaps this one, waits. Returns whether to forward that to the
    /// companions.
    pub(crate) fn waits(&mut self, progress: &Progress, now: Instant) -> bool {
        if progress.waiting.is_none() || is_apart(progress.sequence) {
            return false;
        }
        self.inquiries.note(progress.sequence, now);
        let topic = Topic::Call(progress.sequence, progress.signature);
        self.pace.passes(topic, now)
    }

    /// Records a report that a member is late. Returns whether to forward it to the companions.
    pub(crate) fn record_report(&mut self, report: LateReport, now: Instant) -> bool {
        let Some(rank) = self.view.rank(report.rank) else {
            return false;
        };
        self.heard[rank as usize].report(report, now);
        self.pace.passes(Topic::Late(report.sequence, rank), now)
    }

    /// Reports on companions that are late for a collective that some member waits in.
    pub(crate) fn reports(&mut self, now: Instant) -> Vec<LateReport> {
        let mut reports = Vec::new();
        for sequence in self.inquiries.due(now) {
            for &rank in &self.companions {
                let heard = &self.heard[rank as usize];
                let cause = self.cause(rank, STALE_AFTER, now);
                if heard.takes_part(sequence, STALE_AFTER, now)
                    || cause.is_some_and(|cause| cause != rank)
                    || !self.pace.passes(Topic::Late(sequence, rank), now)
                {
                    continue;
                }
                let last = heard.last();
                reports.push(LateReport {
                    context: self.view.context,
                    sequence,
                    rank: self.view.members[rank as usize],
                    last: last.map(|last| (last.sequence, last.signature)),
                    age: heard.age(now),
                });
            }
        }
        reports
    }

    /// When [`reports`](Self::reports) is due next.
    pub(crate) fn next_reports(&self) -> Option<Instant> {
        self.inquiries.next_due()
    }

    /// Records this rank's own announcement, and returns it for the other members.
    pub(crate) fn announce(
        &mut self,
        sequence: u64,
        signature: [u64; 2],
        waiting: WaitingFor,
        now: Instant,
    ) -> Progress {
        self.announced_at = Some(now);
        let progress = Progress {
            context: self.view.context,
            finished: self.view.finished(),
            sequence,
            signature,
            waiting: Some(waiting),
        };
        if let Some(own) = self.heard.get_mut(self.view.me.rank) {
            own.update(&progress, now);
        }
        progress
    }

    /// This rank's progress while it does not wait, for the other members.
    pub(crate) fn own(&self) -> Progress {
        let entered = self.view.history.latest();
        let signature = self.view.history.get(entered);
        Progress {
            context: self.view.context,
            finished: self.view.finished(),
            sequence: signature.map_or(0, |_| entered),
            signature: signature.unwrap_or_default(),
            waiting: None,
        }
    }

    /// How far this rank is, for a member that asks.
    pub(crate) fn answer(&self, now: Instant) -> Answer {
        let own = self.own();
        let record = self.heard.get(self.view.me.rank);
        let calls = self.view.calls.get();
        Answer {
            context: own.context,
            entered: own.sequence,
            finished: own.finished,
            signature: own.signature,
            waits: record.and_then(|record| record.wait(own.finished, now)),
            calls: calls.map_or([0; KINDS], |calls| calls()),
        }
    }

    /// The wait that this member has announced after `start`, and is in.
    pub(crate) fn own_wait(&self, start: Instant, now: Instant) -> Option<Wait> {
        let record = self.heard.get(self.view.me.rank)?;
        record.wait_after(start, self.own().finished, now)
    }

    /// Records how far a member says it is.
    pub(crate) fn record_answer(&mut self, rank: u32, answer: Answer, now: Instant) {
        if let Some(heard) = self.heard.get_mut(rank as usize) {
            heard.answered = Some((answer, now));
        }
    }

    /// The last answer of a member, and its age; this rank answers at once.
    pub(crate) fn answer_of(&self, rank: u32, now: Instant) -> Option<(Answer, Duration)> {
        if rank == self.me() {
            return Some((self.answer(now), Duration::ZERO));
        }
        let (answer, at) = self.heard.get(rank as usize)?.answered?;
        Some((answer, now.saturating_duration_since(at)))
    }

    /// Whether to announce this rank's progress now, since it was not announced lately.
    pub(crate) fn should_answer(&mut self, now: Instant) -> bool {
        let lately = |at| now.saturating_duration_since(at) < ANSWER_EVERY;
        let owes = !self.announced_at.is_some_and(lately);
        if owes {
            self.announced_at = Some(now);
        }
        owes
    }

    /// Whether this rank has lately told its companions that it waits itself.
    pub(crate) fn has_told_wait(&self, now: Instant) -> bool {
        let own = self.heard.get(self.view.me.rank);
        own.is_some_and(|own| own.waits_lately(ANSWER_EVERY, now).is_some())
    }

    /// Records that a member leaves. Returns a fault if its calls differ from this rank's, or if
    /// this rank is already in a later operation.
    pub(crate) fn leave(&mut self, rank: u32, leave: Leave) -> Option<Fault> {
        let heard = self.heard.get_mut(rank as usize)?;
        if heard.has_left().is_some() {
            return None;
        }
        let heard = heard.left.insert(Box::new(leave)).clone();
        self.schedule_inspection();
        let differs = heard.calls.iter().find_map(|&(sequence, signature)| {
            let mine = self.view.history.get(sequence)?;
            let theirs = Operation {
                sequence,
                signature,
            };
            (mine != signature).then(|| self.mismatch(rank, theirs, mine))
        });
        let entered = self.view.history.latest();
        let lacks = entered > heard.last_sequence;
        differs.or_else(|| lacks.then(|| self.left_fault(rank, &heard, entered)))
    }

    /// Records that a member has left the world. If it had begun to leave before, nothing of it is
    /// in flight any more.
    pub(crate) fn leave_world(&mut self, rank: u32) -> Option<Fault> {
        match &mut self.heard.get_mut(rank as usize)?.left {
            Some(leave) => {
                leave.is_in_flight = false;
                None
            }
            None => self.leave(rank, Leave::default()),
        }
    }

    /// Records that a member has ended while this rank was in no collective: it completes none of
    /// the calls that it had begun.
    pub(crate) fn end_between_calls(&mut self, rank: u32, fault: Fault) {
        let Some(heard) = self.heard.get_mut(rank as usize) else {
            return;
        };
        heard.left = Some(Box::new(Leave {
            cause: Some(fault.clone()),
            ..Leave::after(self.view.finished())
        }));
        self.schedule_inspection();
        self.view.keep_latent(fault);
    }

    /// A member's leave, perhaps with calls in flight.
    pub(crate) fn left(&self, rank: u32) -> Option<&Leave> {
        self.heard.get(rank as usize)?.left.as_deref()
    }

    /// A member's leave, if nothing is in flight.
    pub(crate) fn has_left(&self, rank: u32) -> Option<&Leave> {
        self.heard.get(rank as usize)?.has_left()
    }

    /// Compares an operation of this rank with what is known about the other members.
    pub(crate) fn inspect(&self, sequence: u64, signature: [u64; 2]) -> Option<Fault> {
        self.schedule_inspection();
        if is_apart(sequence) {
            return None;
        }
        (0..).zip(&self.heard).find_map(|(rank, heard)| {
            let left = heard.left.as_deref();
            if let Some(leave) = left.filter(|leave| leave.last_sequence < sequence) {
                return Some(self.left_fault(rank, leave, sequence));
            }
            let theirs = heard
                .operations()
                .find(|theirs| theirs.sequence == sequence)?;
            (theirs.signature != signature).then(|| self.mismatch(rank, theirs, signature))
        })
    }

    /// A question to each companion that is still there and is not known to have made the same
    /// calls of device memory, by world rank.
    pub(crate) fn ask_of_calls(&mut self) -> Vec<(u32, Claim)> {
        self.questions += 1;
        let ledger = self.view.ledger.lock();
        let last = ledger.count();
        let companions = self.companions.iter();
        let claims = companions.filter_map(|&rank| {
            let heard = self.heard.get(rank as usize)?;
            if heard.left.is_some() || heard.comparison.agreed >= last {
                return None;
            }
            let claim = heard.comparison.claim(self.view.context, &ledger, last);
            let question = Claim {
                question: self.questions,
                asks: true,
                ..claim
            };
            Some((self.view.members[rank as usize], question))
        });
        claims.collect()
    }

    /// The number of the last question about calls of device memory.
    pub(crate) fn question(&self) -> u64 {
        self.questions
    }

    /// Compares a call of device memory with what another rank claims.
    pub(crate) fn compare(&mut self, rank: u32, claim: &Claim) -> Compared {
        let Some(heard) = self.heard.get_mut(rank as usize) else {
            return Compared::Noted;
        };
        let mut ledger = self.view.ledger.lock();
        let compared = heard.comparison.compare(claim, &ledger);
        let claimed = self.heard.iter();
        let claimed = claimed.filter_map(|heard| heard.comparison.pending);
        ledger.set_claimed(claimed.map(|claim| claim.number).min());
        drop(ledger);
        self.note_compared();
        compared
    }

    /// Takes the claims about calls that this rank has made by now, by member.
    pub(crate) fn take_pending(&mut self) -> Vec<(u32, Claim)> {
        let made = self.view.ledger.lock().count();
        let heard = (0..).zip(&mut self.heard);
        let due = heard.filter_map(|(rank, heard)| {
            let pending = &mut heard.comparison.pending;
            let claim = pending.take_if(|claim| claim.number <= made)?;
            Some((rank, claim))
        });
        due.collect()
    }

    /// The companions that are still there, are not known to have made the same calls of device
    /// memory up to `number`, and have not answered `question`.
    pub(crate) fn uncompared(&self, number: u64, question: u64) -> Vec<u32> {
        let is_open = |&rank: &u32| {
            let heard = self.heard.get(rank as usize);
            heard.is_some_and(|heard| {
                let comparison = &heard.comparison;
                let has_answered = comparison.answered >= question;
                heard.left.is_none() && comparison.agreed < number && !has_answered
            })
        };
        self.companions.iter().copied().filter(is_open).collect()
    }

    /// Notes the last call of device memory up to which all companions have made the same.
    fn note_compared(&self) {
        let companions = self.companions.iter();
        let heard = companions.filter_map(|&rank| self.heard.get(rank as usize));
        let agreed = heard
            .filter(|heard| heard.left.is_none())
            .map(|heard| heard.comparison.agreed);
        self.view.set_compared(agreed.min().unwrap_or(0));
    }

    /// Schedules the inspection of this rank's next operation that something is known about.
    fn schedule_inspection(&self) {
        let entered = self.view.history.latest();
        let next = self.heard.iter().flat_map(|heard| {
            let ahead = heard.operations().map(|theirs| theirs.sequence);
            let ahead = ahead.filter(|&sequence| sequence > entered);
            let left = heard.left.as_deref();
            ahead.chain(left.map(|leave| leave.last_sequence.saturating_add(1)))
        });
        self.view.set_inspect_from(next.min().unwrap_or(u64::MAX));
    }

    fn mismatch(&self, rank: u32, theirs: Operation, mine: [u64; 2]) -> Fault {
        Fault::Mismatch {
            sequence: theirs.sequence,
            rank_a: self.view.me.clone(),
            words_a: (self.view.describe)(mine),
            rank_b: self.view.member(self.view.members[rank as usize]),
            words_b: (self.view.describe)(theirs.signature),
        }
    }

    /// The fault of a call that needs a member that leaves: the root cause, if that member gives
    /// one.
    fn left_fault(&self, rank: u32, leave: &Leave, sequence: u64) -> Fault {
        if let Some(cause) = &leave.cause {
            return self.view.localise(cause.clone());
        }
        let signature = self.view.history.get(sequence);
        Fault::Left {
            rank: self.view.member(self.view.members[rank as usize]),
            last_sequence: leave.last_sequence,
            sequence,
            words: signature.map_or_else(|| "unknown".into(), self.view.describe),
        }
    }

    /// This rank.
    fn me(&self) -> u32 {
        self.view.me.rank as u32
    }
}
