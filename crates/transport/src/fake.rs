//! A simulated link within one process over a virtual clock, with faults and delays that a test
//! chooses.
//!
//! Messages are delayed, calls return "not yet" although they could proceed, a flush may move only
//! a few bytes, and the link may break at a given time. Everything depends only on the seed, the
//! calls and the clock, so a run on one thread is reproducible. Only
//! [`LinkTx::flush`](crate::LinkTx::flush) moves bytes, and only [`Clock::tick`] advances the time.

mod direction;
mod random;
mod rx;
mod tx;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use direction::Direction;
use random::Random;
pub use rx::Rx;
use spark_ccl_log::Mutex;
pub use tx::Tx;

use crate::Geometry;

/// A manual clock. Clones share the time.
#[derive(Debug, Clone, Default)]
pub struct Clock(Arc<AtomicU64>);

impl Clock {
    /// A clock at time 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// The time, in ticks.
    pub fn now(&self) -> u64 {
        // Relaxed: no other data is published through the clock; the links' state is behind locks.
        self.0.load(Ordering::Relaxed)
    }

    /// Advances the clock by one tick.
    pub fn tick(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The faults and delays of a fake link.
#[derive(Debug, Clone)]
pub struct Weather {
    /// The seed of the random generator.
    pub seed: u64,
    /// How many ticks a message, a freed slot and the news of a closed end take. Each is drawn at
    /// random; messages keep their order nevertheless.
    pub delay: RangeInclusive<u64>,
    /// How many of 100 calls that could proceed return "not yet" (at most 99).
    pub not_yet_percent: u8,
    /// The most bytes that one flush moves; each flush draws its limit at random.
    pub flush_bytes: usize,
    /// The time at which the link breaks: messages in flight are lost.
    pub breaks_at: Option<u64>,
}

impl Weather {
    /// No delays, no spurious "not yet", and each flush moves everything.
    pub fn calm() -> Self {
        Self {
            seed: 0,
            delay: 0..=0,
            not_yet_percent: 0,
            flush_bytes: usize::MAX,
            breaks_at: None,
        }
    }

    /// Some of each fault, except that the link does not break.
    pub fn rough(seed: u64) -> Self {
        Self {
            seed,
            delay: 0..=20,
            not_yet_percent: 30,
            flush_bytes: 300,
            breaks_at: None,
        }
    }
}

/// One end of a link.
pub type LinkEnd = (Tx, Rx);

/// Both ends of a link.
pub fn pair(clock: &Clock, geometry: Geometry, weather: &Weather) -> (LinkEnd, LinkEnd) {
    let mut seeds = Random::new(weather.seed);
    let mut half = || Random::new(seeds.next());
    let [forth, back] = [(); 2].map(|()| Arc::new(Mutex::new(Direction::default())));
    let tx = |direction: &_, random| Tx::new(clock, geometry, weather, direction, random);
    let rx = |direction: &_, random| Rx::new(clock, weather, direction, random);
    let here = (tx(&forth, half()), rx(&back, half()));
    let there = (tx(&back, half()), rx(&forth, half()));
    (here, there)
}

#[cfg(test)]
mod tests;
