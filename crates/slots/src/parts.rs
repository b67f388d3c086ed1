//! The parts of a slot that a carrier puts into the peer's memory, in their order.

use std::sync::atomic::Ordering;

use spark_ccl_transport::PutPart;

use crate::layout::{CREDIT, FLAG, HEAD};
use crate::{Placement, PostBox, Slot};

/// The bytes of a credit and a record, which follow each other.
const DESCRIBED: usize = HEAD - CREDIT;
/// The ranges of [`PostBox::ranges`], by their place there.
const IN_BOX: usize = 0;
const ON_DEVICE: usize = 1;

impl PostBox {
    /// The memory, each range with its address and bytes, that a carrier reads or writes by itself:
    /// the slots of the box, and, for slots on the GPU, these. Counters and packets are not in it.
    pub fn ranges(&self) -> Vec<(u64, usize)> {
        let shape = self.shape();
        let in_box = (
            self.start() + shape.slots() as u64,
            shape.packets() - shape.slots(),
        );
        match self.slots_on_device() {
            None => vec![in_box],
            Some(address) => vec![in_box, (address, shape.bytes_on_device())],
        }
    }

    /// The parts of a filled slot, with a credit: where they are, and where they go in the
    /// [`ranges`](Self::ranges) of an inbox of the same shape. A part must arrive after all before
    /// it. With slots on the GPU, what its kernel waits for comes first, and then the head for the
    /// peer's proxy. The parts may be read until the slot has completed.
    ///
    /// # Panics
    /// A slot has no room for the payload.
    pub fn parts(
        &self,
        slot: Slot,
        payload: usize,
        consumed: u64,
    ) -> impl Iterator<Item = PutPart> + use<> {
        let shape = self.shape();
        assert!(payload <= shape.payload(), "{payload} bytes in a slot");
        // Relaxed: this thread reads both, or a device that it tells to do so later.
        self.credit_with(slot).store(consumed, Ordering::Relaxed);
        self.flag(slot).store(slot.number, Ordering::Relaxed);
        let head = self.start() + shape.slot(slot) as u64;
        let in_range = [shape.slot(slot) - shape.slots(), shape.whole_slot(slot)];
        // From the outbox's head to the one in a range.
        let of_head = |range: usize, at: usize, bytes: usize| PutPart {
            from: head + at as u64,
            bytes: bytes as u32,
            range,
            at: (in_range[range] + at) as u64,
        };
        let flag = |range| of_head(range, FLAG, size_of::<u64>());
        let parts = match self.slots_on_device() {
            None => [
                Some(of_head(IN_BOX, CREDIT, DESCRIBED + payload)),
                Some(flag(IN_BOX)),
                None,
                None,
                None,
            ],
            Some(address) => [
                (payload > 0).then_some(PutPart {
                    from: address + (in_range[ON_DEVICE] + HEAD) as u64,
                    bytes: payload as u32,
                    range: ON_DEVICE,
                    at: (in_range[ON_DEVICE] + HEAD) as u64,
                }),
                Some(of_head(ON_DEVICE, CREDIT, DESCRIBED)),
                Some(flag(ON_DEVICE)),
                Some(of_head(IN_BOX, CREDIT, DESCRIBED)),
                Some(flag(IN_BOX)),
            ],
        };
        parts.into_iter().flatten()
    }

    fn slots_on_device(&self) -> Option<u64> {
        match self.shape().placement() {
            Placement::Host => None,
            Placement::Device => Some(self.slots_at()),
        }
    }
}
