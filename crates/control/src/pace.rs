//! Pacing: limits how many notices a rank forwards, and how long it waits before it reports late
//! ranks.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::wire::WaitingFor;

/// Each topic is forwarded once per window, a span of time. Ranks that wait announce it once a
/// second.
const WINDOW: Duration = Duration::from_millis(900);
/// The number of different calls that are forwarded per window. Two are enough to prove a mismatch.
const MAX_CALLS: usize = 4;
/// The number of late ranks that are forwarded per window. A fault names no more.
const MAX_LATE: usize = 12;

/// The contents of a notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Topic {
    /// A member waits in this collective (sequence number), which it called with this signature.
    Call(u64, [u64; 2]),
    /// For this collective (sequence number), this member is late.
    Late(u64, u32),
}

/// Lets each topic through once per window, and a bounded number of topics, however many ranks send
/// them.
#[derive(Default)]
pub(crate) struct Pace {
    since: Option<Instant>,
    passed: HashSet<Topic>,
    calls: usize,
}

impl Pace {
    /// Whether to forward a topic. If so, it is not forwarded again within the window.
    pub(crate) fn passes(&mut self, topic: Topic, now: Instant) -> bool {
        let is_over = |since| now.saturating_duration_since(since) >= WINDOW;
        if self.since.is_none_or(is_over) {
            self.since = Some(now);
            self.passed.clear();
            self.calls = 0;
        }
        let is_call = matches!(topic, Topic::Call(..));
        let is_full = if is_call {
            self.calls == MAX_CALLS
        } else {
            self.passed.len() - self.calls == MAX_LATE
        };
        let passes = !is_full && self.passed.insert(topic);
        self.calls += usize::from(passes && is_call);
        passes
    }
}

/// The collectives that members wait in, for which this rank looks for late companions.
#[derive(Default)]
pub(crate) struct Inquiries(Vec<Inquiry>);

struct Inquiry {
    sequence: u64,
    first: Instant,
    last: Instant,
    /// Whether `due` has looked at it since it became due, and returned it or found it too old.
    is_checked: bool,
}

/// The number of inquiries that are kept. Ranks that wait for each other are in few different
/// collectives.
const MAX_INQUIRIES: usize = 4;
/// The time that members have to announce their progress before they are reported late.
const REPLY_WITHIN: Duration = Duration::from_millis(300);
/// When an inquiry is dropped: a rank that still waits has announced it again by then.
const FORGET_AFTER: Duration = Duration::from_millis(2500);

impl Inquiries {
    /// A member waits in this collective.
    pub(crate) fn note(&mut self, sequence: u64, now: Instant) {
        self.0
            .retain(|inquiry| now.saturating_duration_since(inquiry.last) < FORGET_AFTER);
        if let Some(known) = self.0.iter_mut().find(|known| known.sequence == sequence) {
            known.last = now;
            return;
        }
        if self.0.len() == MAX_INQUIRIES {
            self.0.remove(0);
        }
        self.0.push(Inquiry {
            sequence,
            first: now,
            last: now,
            is_checked: false,
        });
    }

    /// The collectives for which all members have had time to announce their progress.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<u64> {
        let mut due = Vec::new();
        for inquiry in &mut self.0 {
            if now >= inquiry.first + REPLY_WITHIN {
                inquiry.is_checked = true;
                if now < inquiry.last + FORGET_AFTER {
                    due.push(inquiry.sequence);
                }
            }
        }
        due
    }

    /// When the next unchecked inquiry is due. It may be in the past: each one has to be checked
    /// once.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let unseen = self.0.iter().filter(|inquiry| !inquiry.is_checked);
        unseen.map(|inquiry| inquiry.first + REPLY_WITHIN).min()
    }
}

/// Whether `waiting` names this rank of the world.
pub(crate) fn waits_for(waiting: Option<WaitingFor>, rank: u32) -> bool {
    matches!(waiting, Some(WaitingFor::Rank(whom)) if whom == rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_passes_once_in_a_while_and_few_do() {
        let mut pace = Pace::default();
        let start = Instant::now();
        let call = |number| Topic::Call(1, [number, 0]);
        assert!(pace.passes(call(0), start));
        assert!(!pace.passes(call(0), start + WINDOW / 2));
        let passed = (0..100).filter(|&rank| pace.passes(Topic::Late(1, rank), start));
        assert_eq!(passed.count(), MAX_LATE);
        let passed = (0..100).filter(|&number| pace.passes(call(number), start));
        assert_eq!(passed.count(), MAX_CALLS - 1);
        assert!(pace.passes(call(0), start + WINDOW));
    }

    #[test]
    fn a_question_is_due_after_a_while_and_forgotten_when_nobody_asks() {
        let mut inquiries = Inquiries::default();
        let start = Instant::now();
        inquiries.note(7, start);
        assert_eq!(inquiries.due(start), []);
        assert_eq!(inquiries.next_due(), Some(start + REPLY_WITHIN));
        assert_eq!(inquiries.due(start + REPLY_WITHIN), [7]);
        assert_eq!(inquiries.next_due(), None);
        inquiries.note(7, start + FORGET_AFTER / 2);
        assert_eq!(inquiries.due(start + FORGET_AFTER), [7]);
        assert_eq!(inquiries.due(start + FORGET_AFTER * 2), []);
        (0..100).for_each(|sequence| inquiries.note(sequence, start));
        assert_eq!(inquiries.due(start + REPLY_WITHIN).len(), MAX_INQUIRIES);
    }

    /// An inquiry that nobody checked in time has to be checked once.
    #[test]
    fn a_question_that_is_overdue_stays_due_until_somebody_looks() {
        let mut inquiries = Inquiries::default();
        let start = Instant::now();
        let due = start + REPLY_WITHIN;
        inquiries.note(7, start);
        assert_eq!(inquiries.due(start + REPLY_WITHIN / 2), []);
        assert_eq!(inquiries.next_due(), Some(due));
        inquiries.note(8, start + FORGET_AFTER);
        assert_eq!(
            inquiries.due(start + FORGET_AFTER * 3),
            [],
            "both are forgotten"
        );
        assert_eq!(inquiries.next_due(), None);
    }
}
