//! Wakes the other end of a link if it blocks.
//!
//! An end that is about to block sets its word `asleep`, issues a barrier on all cores, checks its
//! rings once more and blocks. Whenever the other end has stored something that the first may wait
//! for, it loads `asleep` and, if that is set, rings the first end's bell. This costs one load of a
//! line that hardly ever changes, and no fence.
//!
//! Pairings:
//! - `asleep` with `filled`, `released`, `wanted`, `given` and the `closed` words: each end stores
//!   its own word and then loads the other's ([`arm`], barrier, check; publish,
//!   [`ring_if_asleep`]). The sleeper's barrier is also a full fence on the other end's core, at
//!   some moment during the call. If the other end stores after that moment, its load comes later
//!   still and sees `asleep`; if before, the sleeper's check sees what it stored.
//! - `asleep` with itself: an end that rings has reset it before. The bell orders the reset before
//!   the sleeper's next [`arm`], so the reset cannot undo that.
//! - `rings` and then `asleep`: Release in [`Doorbell::set`], Acquire and then Release in
//!   [`Doorbell::arm`], and the Acquire fence in [`Doorbell::ring`]. The sleeper relies on the bell
//!   only after it was set, so the ringing thread sees the bell that another thread has set. All
//!   other uses of `rings` publish nothing.

pub(super) mod words;

// A compiler fence is enough: the sleeper's barrier is the other half.
#[cfg(not(all(test, loom)))]
use std::sync::atomic::compiler_fence as light_fence;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, OnceLock};

#[cfg(all(test, loom))]
use loom::sync::atomic::fence as light_fence;
use words::Words;

use super::layout::Direction;
use super::ring::Word;
use super::segment::Segment;
use crate::wait::{Bell, Wait, register_for_barriers};

const RINGS: u64 = 1;
const NEVER_RINGS: u64 = 2;

/// Announces that this end is about to block. Must be followed by a barrier and another check.
fn arm(asleep: &impl Word) {
    asleep.store(1, Ordering::Release);
}

/// Announces that this end does not block any more.
fn disarm(asleep: &impl Word) {
    asleep.store(0, Ordering::Relaxed);
}

/// Rings if the other end is asleep. What it may wait for must have been stored before.
#[inline]
fn ring_if_asleep(asleep: &impl Word, ring: impl FnOnce()) {
    light_fence(Ordering::SeqCst);
    if asleep.load(Ordering::Relaxed) != 0 {
        // One ring is enough.
        asleep.store(0, Ordering::Relaxed);
        ring();
    }
}

/// The doorbell between the two ends of a link, as one of them sees it.
#[derive(Debug, Clone)]
pub(super) struct Doorbell {
    segment: Arc<Segment>,
    /// The direction in which this end sends.
    direction: Direction,
    /// The other end's bell, once this end has it.
    bell: Arc<OnceLock<Arc<Bell>>>,
}

/// Gives a link its peer's bell, independently of the link: the bell may arrive later.
#[derive(Debug)]
pub struct Chime(Doorbell);

impl Chime {
    /// The chime of this end.
    pub fn of(end: &super::LinkEnd) -> Self {
        Self(end.0.doorbell.clone())
    }

    /// From now on, this end wakes the peer by this bell.
    pub fn set(&self, bell: &Arc<Bell>) {
        // If the kernel refuses, the peer is told not to rely on being woken.
        if register_for_barriers() {
            self.0.set(bell);
        } else {
            self.0.own().rings.store(NEVER_RINGS, Ordering::Relaxed);
        }
    }

    /// Whether the peer has announced whether it rings. Before that it has not used the link.
    pub fn is_answered(&self) -> bool {
        self.0.other().rings.load(Ordering::Relaxed) != 0
    }
}

impl Doorbell {
    pub(super) fn new(segment: &Arc<Segment>, direction: Direction) -> Self {
        Self {
            segment: Arc::clone(segment),
            direction,
            bell: Arc::default(),
        }
    }

    /// Rings this bell from now on. This process must be registered for barriers.
    fn set(&self, bell: &Arc<Bell>) {
        self.bell.get_or_init(|| Arc::clone(bell));
        self.own().rings.store(RINGS, Ordering::Release);
    }

    /// Rings if the other end is asleep. What it may wait for must have been stored before.
    #[inline]
    pub(super) fn ring_if_asleep(&self) {
        ring_if_asleep(&self.other().asleep, || self.ring());
    }

    /// Announces that this end is about to block.
    pub(super) fn arm(&self, wait: &mut Wait) {
        if self.other().rings.load(Ordering::Acquire) == RINGS {
            arm(&self.own().asleep);
            wait.add_word();
        } else {
            wait.be_blind();
        }
    }

    /// Announces that this end does not block any more.
    pub(super) fn disarm(&self) {
        disarm(&self.own().asleep);
    }

    #[cold]
    fn ring(&self) {
        fence(Ordering::Acquire);
        if let Some(bell) = self.bell.get() {
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
