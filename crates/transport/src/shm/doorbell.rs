//! How an end of a link that blocks is woken up by the other.
//!
//! An end that is about to block says so in its word `asleep`, has a barrier on all cores, looks at its
//! rings once more and blocks. The other end, whenever it has stored what the first may wait for, looks
//! at `asleep`, and rings the first's bell if it is set. That is one load of a line that hardly ever
//! changes; it has no fence.
//!
//! Pairings:
//! - `asleep` with `filled`, `released`, `wanted`, `given` and the words of ends that are closed: each side
//!   stores its own and then loads the other's ([`lie_down`], barrier, look; publish, [`knock`]). The
//!   sleeper's barrier is a full fence on the core of the other, too, at some moment of the call. If the
//!   other stores after that moment, its load comes later still, and sees `asleep`; if before, the sleeper's
//!   look sees what it stored.
//! - `asleep` with itself: whoever rings has reset it before. The bell orders that before the sleeper's
//!   next [`lie_down`], which it does not undo therefore.
//! - `rings` and then `asleep`: Release in [`Doorbell::set`], Acquire in [`Doorbell::lie_down`], Release there, and
//!   the Acquire fence in [`Doorbell::ring`]: whoever rings has the bell that another thread has set, since the sleeper
//!   relies on it only after that. Elsewhere `rings` says only that, and nothing is read on its account.

pub(super) mod words;

#[cfg(all(test, loom))]
use loom::sync::atomic::fence as light_fence;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, OnceLock};
// The other half of the fence is the sleeper's barrier.
#[cfg(not(all(test, loom)))]
use std::sync::atomic::compiler_fence as light_fence;

use words::Words;

use super::layout::Direction;
use super::ring::Word;
use super::segment::Segment;
use crate::wait::{Bell, Wait, take_part};

const RINGS: u64 = 1;
const SILENT: u64 = 2;

/// Says that this end is about to block. To be followed by a barrier, and another look.
fn lie_down(asleep: &impl Word) {
    asleep.store(1, Ordering::Release);
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
#[derive(Debug, Clone)]
pub(super) struct Doorbell {
    segment: Arc<Segment>,
    /// In which this end sends.
    direction: Direction,
    /// The other end's, once this one has it.
    bell: Arc<OnceLock<Arc<Bell>>>,
}

/// What wakes up a link's peer, apart from the link: the bell may come later.
#[derive(Debug)]
pub struct Chime(Doorbell);

impl Chime {
    /// That of this end.
    pub fn of(end: &super::End) -> Self {
        Self(end.0.doorbell.clone())
    }

    /// What the end does wakes up the peer from now on, which has this bell.
    pub fn set(&self, bell: &Arc<Bell>) {
        // Where the kernel refuses, the peer does not rely on being woken up.
        if take_part() {
            self.0.set(bell);
        } else {
            self.0.own().rings.store(SILENT, Ordering::Relaxed);
        }
    }

    /// Whether the peer has said if it rings. It has had no use for the link before.
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

    /// Rings this bell from now on. Its process takes part in barriers.
    fn set(&self, bell: &Arc<Bell>) {
        self.bell.get_or_init(|| Arc::clone(bell));
        self.own().rings.store(RINGS, Ordering::Release);
    }

    /// Rings if the other end is asleep. What it may wait for was stored before.
    #[inline]
    pub(super) fn knock(&self) {
        knock(&self.other().asleep, || self.ring());
    }

    /// Says that this end is about to block.
    pub(super) fn lie_down(&self, wait: &mut Wait) {
        if self.other().rings.load(Ordering::Acquire) == RINGS {
            lie_down(&self.own().asleep);
            wait.add_word();
        } else {
            wait.be_blind();
        }
    }

    /// Says that this end does not block any more.
    pub(super) fn get_up(&self) {
        get_up(&self.own().asleep);
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
