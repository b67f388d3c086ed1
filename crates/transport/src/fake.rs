//! A link within one process over a virtual clock, with the weather that a test asks for.
//!
//! Messages take a while, channels overtake each other, calls answer "not yet" although they could
//! go ahead, bytes leave a few at a time, and the link may break at a given time. What happens
//! depends on the seed, the calls and the clock alone, so a run on one thread can be repeated.
//! Nothing moves but by [`LinkTx::flush`](crate::LinkTx::flush), and no time passes but by
//! [`Clock::tick`].

mod direction;
mod random;
mod rx;
mod tx;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Geometry;
use direction::Direction;
use random::Random;

pub use rx::Rx;
pub use tx::Tx;

/// A clock that moves when it is told to. Copies show the same time.
#[derive(Debug, Clone, Default)]
pub struct Clock(Arc<AtomicU64>);

impl Clock {
    /// A clock that shows 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// The time, in ticks.
    pub fn now(&self) -> u64 {
        // Relaxed: the links' states have locks of their own.
        self.0.load(Ordering::Relaxed)
    }

    /// Moves on by one tick.
    pub fn tick(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// What a fake link does to its messages.
#[derive(Debug, Clone)]
pub struct Weather {
    /// Where chance starts from.
    pub seed: u64,
    /// Ticks that a message, a freed slot and the news of a closed end take. Each message draws
    /// its own; a channel keeps its order all the same.
    pub delay: RangeInclusive<u64>,
    /// Of 100 calls that could go ahead, how many answer "not yet" (at most 99).
    pub not_yet_percent: u8,
    /// The most bytes that one flush moves, of all channels together; each flush draws its own.
    pub flush_bytes: usize,
    /// The time at which the link breaks: what is on its way is lost.
    pub breaks_at: Option<u64>,
}

impl Weather {
    /// No delay, no refusals, everything leaves at once.
    pub fn calm() -> Self {
        Self {
            seed: 0,
            delay: 0..=0,
            not_yet_percent: 0,
            flush_bytes: usize::MAX,
            breaks_at: None,
        }
    }

    /// Some of everything, but the link holds.
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
pub type End = (Tx, Rx);

/// Both ends of a link.
pub fn pair(clock: &Clock, geometry: Geometry, weather: &Weather) -> (End, End) {
    let mut seeds = Random::new(weather.seed);
    let mut half = || Random::new(seeds.next());
    let forth = Direction::shared(geometry);
    let back = Direction::shared(geometry);
    let tx = |direction: &_, random| Tx::new(clock, geometry, weather, direction, random);
    let rx = |direction: &_, random| Rx::new(clock, geometry, weather, direction, random);
    let here = (tx(&forth, half()), rx(&back, half()));
    let there = (tx(&back, half()), rx(&forth, half()));
    (here, there)
}

#[cfg(test)]
mod tests;
