//! How much of what others tell is passed on.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::wire::WaitingFor;

/// What is the same is passed on once in this time: ranks that wait say so once a second.
const WINDOW: Duration = Duration::from_millis(900);
/// How many different calls are passed on meanwhile. Two are a mismatch.
const MAX_CALLS: usize = 4;
/// How many late ranks are. A fault names no more.
const MAX_LATE: usize = 12;

/// Something that is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Word {
    /// Somebody waits in this collective, which it called so.
    Call(u64, [u64; 2]),
    /// This member is late for this collective.
    Late(u64, u32),
}

/// Passes on each word once in a while, and only so many of them, whatever the number of ranks that say them.
#[derive(Default)]
pub(crate) struct Pace {
    since: Option<Instant>,
    passed: HashSet<Word>,
    calls: usize,
}

impl Pace {
    /// Whether a word is to be passed on; from now on, for a while, it is not.
    pub(crate) fn passes(&mut self, word: Word, now: Instant) -> bool {
        let is_over = |since| now.saturating_duration_since(since) >= WINDOW;
        if self.since.is_none_or(is_over) {
            self.since = Some(now);
            self.passed.clear();
            self.calls = 0;
        }
        let is_call = matches!(word, Word::Call(..));
        let is_full = if is_call {
            self.calls == MAX_CALLS
        } else {
            self.passed.len() - self.calls == MAX_LATE
        };
        let passes = !is_full && self.passed.insert(word);
        self.calls += usize::from(passes && is_call);
        passes
    }
}

/// The collectives that members wait in, for which late ones are looked for.
#[derive(Default)]
pub(crate) struct Asked(Vec<Question>);

struct Question {
    sequence: u64,
    first: Instant,
    last: Instant,
    /// Whether it was looked at since it became due.
    is_seen: bool,
}

/// How many are remembered: ranks that wait for each other are in few.
const MAX_QUESTIONS: usize = 4;
/// How long the others get to say where they are.
const REPLY_WITHIN: Duration = Duration::from_millis(300);
/// Whoever still waits has asked again by then.
const FORGET_AFTER: Duration = Duration::from_millis(2500);

impl Asked {
    /// Somebody waits in this collective.
    pub(crate) fn note(&mut self, sequence: u64, now: Instant) {
        self.0
            .retain(|question| now.saturating_duration_since(question.last) < FORGET_AFTER);
        if let Some(known) = self.0.iter_mut().find(|known| known.sequence == sequence) {
            known.last = now;
            return;
        }
        if self.0.len() == MAX_QUESTIONS {
            self.0.remove(0);
        }
        self.0.push(Question {
            sequence,
            first: now,
            last: now,
            is_seen: false,
        });
    }

    /// Those for which all have had time to say where they are.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<u64> {
        let mut due = Vec::new();
        for question in &mut self.0 {
            if now >= question.first + REPLY_WITHIN {
                question.is_seen = true;
                if now < question.last + FORGET_AFTER {
                    due.push(question.sequence);
                }
            }
        }
        due
    }

    /// When the next of them is due, perhaps in the past: each is to be looked at.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let unseen = self.0.iter().filter(|question| !question.is_seen);
        unseen.map(|question| question.first + REPLY_WITHIN).min()
    }
}

/// Whether somebody waits for this rank of the world.
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
        let call = |number| Word::Call(1, [number, 0]);
        assert!(pace.passes(call(0), start));
        assert!(!pace.passes(call(0), start + WINDOW / 2));
        let passed = (0..100).filter(|&rank| pace.passes(Word::Late(1, rank), start));
        assert_eq!(passed.count(), MAX_LATE);
        let passed = (0..100).filter(|&number| pace.passes(call(number), start));
        assert_eq!(passed.count(), MAX_CALLS - 1);
        assert!(pace.passes(call(0), start + WINDOW));
    }

    #[test]
    fn a_question_is_due_after_a_while_and_forgotten_when_nobody_asks() {
        let mut asked = Asked::default();
        let start = Instant::now();
        asked.note(7, start);
        assert_eq!(asked.due(start), []);
        assert_eq!(asked.next_due(), Some(start + REPLY_WITHIN));
        assert_eq!(asked.due(start + REPLY_WITHIN), [7]);
        assert_eq!(asked.next_due(), None);
        asked.note(7, start + FORGET_AFTER / 2);
        assert_eq!(asked.due(start + FORGET_AFTER), [7]);
        assert_eq!(asked.due(start + FORGET_AFTER * 2), []);
        (0..100).for_each(|sequence| asked.note(sequence, start));
        assert_eq!(asked.due(start + REPLY_WITHIN).len(), MAX_QUESTIONS);
    }

    /// Nobody looked in time: it is still to be looked at, once.
    #[test]
    fn a_question_that_is_overdue_stays_due_until_somebody_looks() {
        let mut asked = Asked::default();
        let start = Instant::now();
        let due = start + REPLY_WITHIN;
        asked.note(7, start);
        assert_eq!(asked.due(start + REPLY_WITHIN / 2), []);
        assert_eq!(asked.next_due(), Some(due));
        asked.note(8, start + FORGET_AFTER);
        assert_eq!(
            asked.due(start + FORGET_AFTER * 3),
            [],
            "both are forgotten"
        );
        assert_eq!(asked.next_due(), None);
    }
}
