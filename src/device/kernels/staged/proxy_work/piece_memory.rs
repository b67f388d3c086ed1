//! Where pieces are, as memory of the host engine: in the slots of a stage, or in the user's pinned
//! memory.

use std::sync::Arc;

use spark_ccl_gpu::Stage;
use spark_ccl_transport::rdma::Reach;

use crate::api::communicator::Communicator;
use crate::memory::buffer::Region;
use crate::memory::device::block::Block;
use crate::memory::registered::{Hold, Segment};

/// Where the pieces of a communicator are.
pub(super) struct PieceMemory {
    /// The slots, if they are registered with RDMA devices, so that a piece is not copied once
    /// more.
    slots: Option<Arc<Segment>>,
}

impl Hold for Arc<Stage> {}

impl PieceMemory {
    pub(super) fn new(stage: &Arc<Stage>, carrier: &Communicator) -> Self {
        let (start, bytes) = stage.slots();
        let holder = Box::new(Arc::clone(stage));
        // SAFETY: the holder keeps the stage, which never moves its slots. From a piece's bell to
        // its answer, no kernel uses the slot, and `ProxyWork` has only the host engine use it. A
        // piece that fails has no answer, so no kernel reads its slot.
        let segment = unsafe {
            carrier
                .inner
                .register_held((start, bytes), None, Reach::Lent, holder)
        };
        let slots = segment.is_within_reach_of_devices();
        Self {
            slots: slots.then(|| Arc::new(segment)),
        }
    }

    /// Whether devices read pieces from the slots, and write results to them.
    pub(super) fn are_registered(&self) -> bool {
        self.slots.is_some()
    }

    /// `len` elements from a place in a slot on.
    pub(super) fn slot(&self, start: *mut u8, len: usize) -> Region {
        match &self.slots {
            Some(segment) => {
                let offset = start.addr() - segment.own_base().addr();
                Region::registered(segment, offset, len)
            }
            None => Region::host(start, len),
        }
    }
}

/// `len` elements of `size` bytes in the user's pinned memory, from an address on. `None` if no
/// pinned memory is there.
pub(super) fn buffer(address: u64, len: usize, size: usize) -> Option<Region> {
    if len == 0 {
        return Some(Region::empty());
    }
    let (segment, offset) = Block::find_pinned(address, len.checked_mul(size)?)?;
    Some(Region::registered(&segment, offset, len))
}
