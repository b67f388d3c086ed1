//! Packets that a cut cable holds back. They arrive once it is mended, as long as the peer's queue
//! pair answers, even if the sender has given up by then.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Cable;
use super::end::{Address, PAUSE, PairEnd, lock};
use super::memory::{self, Span};

/// The rest of a write.
pub(super) struct Stray {
    pub(super) from: Address,
    pub(super) peer: Arc<PairEnd>,
    /// The sender's cable, which counts it.
    pub(super) cable: Cable,
    /// The access that the peer must allow.
    pub(super) needed: u32,
    pub(super) pieces: Vec<(Span, Vec<u8>)>,
}

impl Stray {
    /// Holds it back in a thread of its own.
    pub(super) fn start(self) {
        self.cable.strays.fetch_add(1, Ordering::Relaxed);
        std::thread::spawn(move || {
            while !self.is_over() {
                std::thread::sleep(PAUSE);
            }
            self.cable.strays.fetch_sub(1, Ordering::Relaxed);
        });
    }

    /// Arrives, if it can. Returns whether it has, or never will.
    fn is_over(&self) -> bool {
        let rules = self.peer.rules();
        if !self.peer.answers() || rules.peer != Some(self.from) {
            return true;
        }
        if self.cable.is_cut.load(Ordering::Relaxed) || self.peer.is_cut() {
            return false;
        }
        let keys = lock(&self.peer.peer_keys);
        for (there, bytes) in &self.pieces {
            // SAFETY: the peer's user has registered the memory for its peers to write, and so
            // leaves it to them as long as its queue pair answers.
            let _ = unsafe { memory::write(&keys, *there, self.needed, bytes) };
        }
        true
    }
}
