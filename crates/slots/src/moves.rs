//! The moves of a slot by a carrier that writes into the peer's memory, in their order.

use std::sync::atomic::Ordering;

use crate::layout::{CREDIT, FLAG, HEAD};
use crate::{Place, Placement, PostBox, Slot};

/// A part of a slot: bytes at an address of this rank, and where they go at the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// Where it is, in the outbox.
    pub from: u64,
    /// Where it goes, in the peer's inbox.
    pub to: u64,
    /// Its length.
    pub bytes: usize,
}

/// The bytes of a credit and a record, which follow each other.
const DESCRIBED: usize = HEAD - CREDIT;

impl PostBox {
    /// The moves of a slot of this outbox to an inbox of the same shape at `to`, with a credit. A
    /// flag, of eight bytes, must arrive after all moves before it to the same memory. With slots
    /// on the GPU, what its kernel waits for comes first, and then the head for the peer's proxy.
    /// The moves may be read until the slot has completed.
    pub fn moves(
        &self,
        slot: Slot,
        payload: usize,
        consumed: u64,
        to: Place,
    ) -> impl Iterator<Item = Move> + use<> {
        // Relaxed: this thread reads both, or a device that it tells to do so later.
        self.credit_with(slot).store(consumed, Ordering::Relaxed);
        self.flag(slot).store(slot.number, Ordering::Relaxed);
        let (shape, from) = (self.shape(), self.place());
        let [head, whole] = [shape.slot(slot), shape.whole_slot(slot)].map(|at| at as u64);
        // From the outbox's head to the head at an address.
        let heads = |to: u64, at: usize, bytes| Move {
            from: from.start + head + at as u64,
            to: to + at as u64,
            bytes,
        };
        let (in_box, on_device) = (to.start + head, to.slots + whole);
        let moves = match shape.placement() {
            Placement::Host => [
                Some(heads(in_box, CREDIT, DESCRIBED + payload)),
                Some(heads(in_box, FLAG, size_of::<u64>())),
                None,
                None,
                None,
            ],
            Placement::Device => [
                (payload > 0).then_some(Move {
                    from: from.slots + whole + HEAD as u64,
                    to: on_device + HEAD as u64,
                    bytes: payload,
                }),
                Some(heads(on_device, CREDIT, DESCRIBED)),
                Some(heads(on_device, FLAG, size_of::<u64>())),
                Some(heads(in_box, CREDIT, DESCRIBED)),
                Some(heads(in_box, FLAG, size_of::<u64>())),
            ],
        };
        moves.into_iter().flatten()
    }
}
