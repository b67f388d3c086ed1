//! Boxes that are registered with RDMA devices. Devices of this rank read slots in its outboxes,
//! and devices of the peers write slots to its inboxes.

use std::os::fd::AsFd;
use std::ptr::with_exposed_provenance_mut;
use std::sync::Arc;

use spark_ccl_config::Path;
use spark_ccl_cuda::DmaBuf;
use spark_ccl_gpu::Slots;
use spark_ccl_slots::PostBox;
use spark_ccl_transport::rdma::Reach;

use crate::api::communicator::Communicator;
use crate::memory::registered::{Hold, Segment};

/// The registered memory of all boxes of a rank, as long as this lives.
pub(in crate::device::kernels) struct OpenedBoxes {
    _segments: Vec<Segment>,
}

impl Hold for Arc<Slots> {}

impl OpenedBoxes {
    /// Registers all boxes. The driver may wait for running kernels meanwhile, so no kernel may
    /// wait for another rank yet. If that fails, says why.
    pub(in crate::device::kernels) fn new(
        slots: &Arc<Slots>,
        comm: &Communicator,
    ) -> Result<Self, String> {
        if comm.inner.world.settings.path == Path::Safe {
            return Err(format!("SPARK_CCL_PATH=safe on rank {}", comm.rank()));
        }
        let mut segments = Vec::new();
        for rank in 0..slots.ranks() {
            let Some([outbox, inbox]) = slots.boxes(rank) else {
                continue;
            };
            let exported = slots.dma_buf(rank).map_err(|error| error.to_string())?;
            for (of, reach) in [(&outbox, Reach::Source), (&inbox, Reach::Target)] {
                let exported = exported.as_ref().map(|exported| (exported, &outbox));
                segments.extend(open(slots, comm, of, exported, reach)?);
            }
        }
        Ok(Self {
            _segments: segments,
        })
    }
}

/// Registers the slots of a box; its counters and packets are within no peer's reach. Of slots on
/// the GPU, the dma-buf begins with those of the outbox.
fn open(
    slots: &Arc<Slots>,
    comm: &Communicator,
    of: &PostBox,
    exported: Option<(&DmaBuf, &PostBox)>,
    reach: Reach,
) -> Result<Vec<Segment>, String> {
    let register = |(number, (start, bytes)): (usize, (u64, usize))| {
        let dmabuf = exported.filter(|_| number > 0).map(|(exported, first)| {
            let offset = exported.offset + (start - first.slots_at());
            (exported.descriptor.as_fd(), offset)
        });
        let holder = Box::new(Arc::clone(slots));
        let place = (with_exposed_provenance_mut(start as usize), bytes);
        // SAFETY: the holder keeps the boxes and their slots, which never move. No operation of the
        // engine uses them. A peer writes only slots that this rank's kernel has consumed, and sets
        // the flag after that; kernels and proxies use a slot after its flag.
        let segment = unsafe { comm.inner.register_held(place, dmabuf, reach, holder) };
        if segment.is_within_reach_of_devices() {
            return Ok(segment);
        }
        Err(format!(
            "rank {} cannot register {bytes} bytes with its RDMA devices",
            comm.rank()
        ))
    };
    of.ranges().into_iter().enumerate().map(register).collect()
}
