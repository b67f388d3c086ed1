//! Boxes that are registered with RDMA devices: this rank's write slots out of its outboxes, and
//! the peers' into its inboxes.

use std::sync::Arc;

use spark_ccl_config::Path;
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
    /// Registers all boxes, before kernels wait for each other, since the driver may wait for them
    /// then. If that fails, says why.
    pub(in crate::device::kernels) fn new(
        slots: &Arc<Slots>,
        comm: &Communicator,
    ) -> Result<Self, String> {
        if comm.inner.world.settings.path == Path::Safe {
            return Err(format!("SPARK_CCL_PATH=safe on rank {}", comm.rank()));
        }
        let boxes = (0..slots.ranks()).filter_map(|rank| slots.boxes(rank));
        let boxes =
            boxes.flat_map(|[outbox, inbox]| [(outbox, Reach::Source), (inbox, Reach::Target)]);
        let segments = boxes.map(|(of, reach)| open(slots, comm, &of, reach));
        Ok(Self {
            _segments: segments.collect::<Result<_, _>>()?,
        })
    }
}

/// Registers the slots of a box; its counters and packets are within no peer's reach.
fn open(
    slots: &Arc<Slots>,
    comm: &Communicator,
    of: &PostBox,
    reach: Reach,
) -> Result<Segment, String> {
    let (start, bytes) = of.slots();
    let holder = Box::new(Arc::clone(slots));
    // SAFETY: the holder keeps the boxes, which never move. No operation of the engine uses them. A
    // peer writes only slots that this rank's kernel has consumed, and sets the flag after that;
    // kernels and proxies use a slot after its flag.
    let segment = unsafe { comm.inner.register_held((start, bytes), reach, holder) };
    if segment.is_within_reach_of_devices() {
        return Ok(segment);
    }
    Err(format!(
        "rank {} cannot register {bytes} bytes with its RDMA devices",
        comm.rank()
    ))
}
