//! A carrier for two ranks that reach each other's boxes: its thread copies slots itself.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Carrier, Counter, Error, PostBox, Slot};

/// Copies slots to an inbox in memory that this process reaches.
#[derive(Debug)]
pub struct Copying {
    outbox: PostBox,
    /// The peer's inbox, into which slots are copied.
    inbox: PostBox,
    /// The peer's outbox, whose slots come here, and which has its credits.
    peer: PostBox,
    completed: VecDeque<Slot>,
    is_gone: Arc<AtomicBool>,
}

impl Copying {
    /// The carrier from an outbox to the peer's inbox; credits go to the peer's outbox. `is_gone`
    /// is set once the peer is known to be gone.
    pub fn new(outbox: PostBox, inbox: PostBox, peer: PostBox, is_gone: Arc<AtomicBool>) -> Self {
        Self {
            outbox,
            inbox,
            peer,
            completed: VecDeque::new(),
            is_gone,
        }
    }
}

impl Carrier for Copying {
    unsafe fn post(&mut self, slot: Slot, payload: usize, consumed: u64) -> Result<bool, Error> {
        // SAFETY: the caller has published the slot, and writes it again only after it has
        // completed, which is below. The peer has consumed the slot that was in its place, so no
        // kernel uses that place. Only this carrier writes that inbox's slots of this lane.
        unsafe { self.outbox.copy_slot(&self.inbox, slot, payload) };
        self.inbox.set_flag(slot);
        self.completed.push_back(slot);
        self.give_credit(slot.lane, consumed)
    }

    fn completed(&mut self) -> Result<Option<Slot>, Error> {
        Ok(self.completed.pop_front())
    }

    fn give_credit(&mut self, lane: usize, total: u64) -> Result<bool, Error> {
        let credit = self.peer.counter(lane, Counter::Credit);
        // Release pairs with the Acquire in `credit`: the kernel has read the slots before.
        credit.store(total, Ordering::Release);
        Ok(true)
    }

    fn credit(&mut self, lane: usize) -> u64 {
        let credit = self.outbox.counter(lane, Counter::Credit);
        // Acquire pairs with the Release in `give_credit`.
        credit.load(Ordering::Acquire)
    }

    fn post_packets(&mut self, number: u64, words: &[u64]) -> Result<bool, Error> {
        self.inbox.put_packets(number, words.iter().copied());
        Ok(true)
    }

    fn health(&mut self) -> Result<(), Error> {
        // Relaxed: no other read depends on it.
        if self.is_gone.load(Ordering::Relaxed) {
            return Err(Error::Gone);
        }
        Ok(())
    }
}
