//! How long a waiter keeps its core before it lets others have it.

use std::time::{Duration, Instant};

/// Looks at a link, of some tens of nanoseconds each, before a waiter yields: about 30 us.
const MOST_LOOKS: u32 = 512;
const LOOKS_PER_ROUND: u32 = 16;
/// A yield that takes longer was a turn of somebody else.
const TURN: Duration = Duration::from_micros(2);
/// How long a waiter only yields before it blocks.
const YIELD_FOR: Duration = Duration::from_millis(2);
/// Naps of those whom not everything wakes up: longer and longer.
const SHORTEST_NAP: Duration = Duration::from_micros(20);
const LONGEST_NAP: Duration = Duration::from_micros(500);

/// How often to look at the links before yielding. Learned from what yields lead to: where the core
/// is wanted by others, perhaps by the very rank that is waited for, looking on is a waste.
#[derive(Debug)]
pub(super) struct Patience {
    looks: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Self { looks: MOST_LOOKS }
    }
}

impl Patience {
    pub(super) fn looks(&self) -> u32 {
        self.looks
    }

    pub(super) fn rounds(&self) -> u32 {
        self.looks.div_ceil(LOOKS_PER_ROUND)
    }

    pub(super) fn looks_per_round(&self) -> u32 {
        self.looks.min(LOOKS_PER_ROUND)
    }

    /// Takes in whether somebody else had the core during a yield.
    pub(super) fn learn(&mut self, wanted: bool) {
        self.looks = if wanted {
            (self.looks / 4).max(1)
        } else {
            (self.looks * 2).min(MOST_LOOKS)
        };
    }
}

/// How a waiter passes the time between its looks.
#[derive(Debug, Default)]
pub(super) struct Pause {
    since: Option<Instant>,
    nap: Duration,
}

/// What a waiter does between its looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// It has yielded; whether somebody else wanted the core.
    Yielded { was_wanted: bool },
    /// It is to block, not for longer than the nap if not everything wakes it up.
    Block { nap: Duration },
}

impl Pause {
    /// Says that it is time to block, without yielding before.
    pub(super) fn block(&mut self) -> Rest {
        self.nap = (self.nap * 2).clamp(SHORTEST_NAP, LONGEST_NAP);
        Rest::Block { nap: self.nap }
    }

    /// Yields, or says that it is time to block.
    pub(super) fn rest(&mut self) -> Rest {
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        if now.saturating_duration_since(since) < YIELD_FOR {
            std::thread::yield_now();
            let was_wanted = now.elapsed() > TURN;
            return Rest::Yielded { was_wanted };
        }
        self.block()
    }
}
