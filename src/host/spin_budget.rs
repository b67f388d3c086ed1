//! How long a waiter keeps its core before it lets others have it.

use std::time::{Duration, Instant};

/// Polls of a link before a waiter yields: about 30 us over shared memory, and some hundreds over
/// TCP, where each is a system call.
const MOST_POLLS: u32 = 512;
const POLLS_PER_ROUND: u32 = 16;
/// A yield that takes longer gave the core to another thread.
const TURN: Duration = Duration::from_micros(2);
/// How long a waiter only yields before it blocks.
const YIELD_FOR: Duration = Duration::from_millis(2);
/// Naps of a waiter that some events cannot wake: each is longer than the one before.
const SHORTEST_NAP: Duration = Duration::from_micros(20);
const LONGEST_NAP: Duration = Duration::from_micros(500);
/// How long a waiter blocks at most: it has to check deadlines and send announcements.
pub(super) const LONGEST_BLOCK: Duration = Duration::from_millis(50);

/// How often to look at the links before yielding. It is learned from earlier yields: if other
/// threads need the core, perhaps the very rank that is waited for, further looks are wasted.
#[derive(Debug, Clone, Copy)]
pub(super) struct SpinBudget {
    polls: u32,
}

impl Default for SpinBudget {
    fn default() -> Self {
        Self { polls: MOST_POLLS }
    }
}

impl SpinBudget {
    /// For a thread that has other things to do: one look.
    #[cfg(feature = "cuda")]
    pub(super) const ONE_LOOK: Self = Self { polls: 1 };

    pub(super) fn polls(self) -> u32 {
        self.polls
    }

    pub(super) fn rounds(self) -> u32 {
        self.polls.div_ceil(POLLS_PER_ROUND)
    }

    pub(super) fn polls_per_round(self) -> u32 {
        self.polls.min(POLLS_PER_ROUND)
    }

    /// Learns from a yield whether another thread wanted the core.
    pub(super) fn learn(&mut self, wanted: bool) {
        self.polls = if wanted {
            (self.polls / 4).max(1)
        } else {
            (self.polls * 2).min(MOST_POLLS)
        };
    }
}

/// How a waiter passes the time between its polls.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    since: Option<Instant>,
    nap: Duration,
}

/// A waiter's action between two polls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BackoffStep {
    /// It has yielded; whether another thread wanted the core.
    Yielded { was_wanted: bool },
    /// It should block; at most for the nap, if some events cannot wake it up.
    Block { nap: Duration },
}

impl Backoff {
    /// Says that it is time to block, without yielding before.
    pub(super) fn block(&mut self) -> BackoffStep {
        self.nap = (self.nap * 2).clamp(SHORTEST_NAP, LONGEST_NAP);
        BackoffStep::Block { nap: self.nap }
    }

    /// Yields, or says that it is time to block.
    pub(super) fn step(&mut self) -> BackoffStep {
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        if now.saturating_duration_since(since) < YIELD_FOR {
            std::thread::yield_now();
            let was_wanted = now.elapsed() > TURN;
            return BackoffStep::Yielded { was_wanted };
        }
        self.block()
    }
}
