//! How an end of a link that blocks is woken up by the other.
//!
//! An end that is about to block says so in its word `asleep`, has a barrier on all cores, looks at its
//! rings once more and blocks. The other end, whenever it has stored what the first may wait for, looks
//! at `asleep`, and rings the first's bell if it is set. That is one load of a line that hardly ever
//! changes; it has no fence.
//!
//! Pairings:
//! - `asleep` with `filled`, `released` and the words of ends that are closed: each side stores its own
//!   and then loads the other's ([`lie_down`], barrier, look; publish, [`knock`]). The sleeper's barrier
//!   is a full fence on the core of the other, too, at some moment of the call. If the other stores after
//!   that moment, its load comes later still, and sees `asleep`; if before, the sleeper's look sees what
//!   it stored.
//! - `asleep` with itself: whoever rings has reset it before. The bell orders that before the sleeper's
//!   next [`lie_down`], which it does not undo therefore.
//! - `rings`: says only that; nothing is read on its account.

#[cfg(all(test, loom))]
use loom::sync::atomic::fence as light_fence;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
// The other half of the fence is the sleeper's barrier.
#[cfg(not(all(test, loom)))]
use std::sync::atomic::compiler_fence as light_fence;

use super::layout::Direction;
use super::ring::Word;
use super::segment::Segment;
use crate::wait::{Bell, Wait};

/// The words of one end, all zero at first.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Words {
    /// Whether it blocks, or is about to.
    asleep: AtomicU64,
    /// Whether it rings when the other end is asleep.
    rings: AtomicU64,
}

/// Says that this end is about to block. To be followed by a barrier, and another look.
fn lie_down(asleep: &impl Word) {
    asleep.store(1, Ordering::Relaxed);
}

/// Says that this end does not block any more.
fn get_up(asleep: &impl Word) {
    asleep.store(0, Ordering::Relaxed);
}

/// Rings if the other end is asleep. What it may wait for was stored before.
#[inline]
fn knock(asleep: &impl Word, ring: impl FnOnce()) {
    light_fence(Ordering::SeqCst);
    if asleep.load(Ordering::Relaxed) != 0 {
        // Once is enough.
        asleep.store(0, Ordering::Relaxed);
        ring();
    }
}

/// The doorbell between the two ends of a link, as one of them sees it.
#[derive(Debug)]
pub(super) struct Doorbell {
    segment: Arc<Segment>,
    /// In which this end sends.
    direction: Direction,
    /// The other end's, if it has one.
    bell: Option<Arc<Bell>>,
}

impl Doorbell {
    pub(super) fn new(segment: &Arc<Segment>, direction: Direction) -> Self {
        Self {
            segment: Arc::clone(segment),
            direction,
            bell: None,
        }
    }

    /// Rings this bell from now on. Its process takes part in barriers.
    pub(super) fn set(&mut self, bell: &Arc<Bell>) {
        self.bell = Some(Arc::clone(bell));
        self.own().rings.store(1, Ordering::Relaxed);
    }

    /// Rings if the other end is asleep. What it may wait for was stored before.
    #[inline]
    pub(super) fn knock(&self) {
        knock(&self.other().asleep, || self.ring());
    }

    /// Says that this end is about to block.
    pub(super) fn lie_down(&self, wait: &mut Wait) {
        if self.other().rings.load(Ordering::Relaxed) == 0 {
            wait.be_blind();
        } else {
            lie_down(&self.own().asleep);
            wait.add_word();
        }
    }

    /// Says that this end does not block any more.
    pub(super) fn get_up(&self) {
        get_up(&self.own().asleep);
    }

    #[cold]
    fn ring(&self) {
        if let Some(bell) = &self.bell {
            bell.ring();
        }
    }

    fn own(&self) -> &Words {
        self.segment.doorbell(self.direction)
    }

    #[inline]
    fn other(&self) -> &Words {
        self.segment.doorbell(self.direction.reverse())
    }
}

#[cfg(all(test, loom))]
mod model;
