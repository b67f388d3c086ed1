//! Whether slots may be in the GPUs' memory, where RDMA devices write them by dma-bufs.

use std::sync::atomic::{AtomicBool, Ordering};

use spark_ccl_config::Path;
use spark_ccl_cuda::cudarc::driver::CudaContext;
use spark_ccl_cuda::rdma_traits;
use spark_ccl_gpu::Slots;

use crate::api::communicator::Communicator;
use crate::mesh::shares_memory;

/// Whether a probe's pattern has failed to arrive in the GPUs' memory, in this process: later ones
/// would fail, too.
static IS_OUT_OF_REACH: AtomicBool = AtomicBool::new(false);

/// Notes that a pattern has not come.
pub(super) fn note_out_of_reach() {
    // Relaxed: it orders nothing else.
    IS_OUT_OF_REACH.store(true, Ordering::Relaxed);
}

/// Whether slots for this rank's peers may be in the memory of its GPU, or why not, as far as it is
/// known before a pattern passes that way.
pub(super) fn may_be_on_gpu(comm: &Communicator, context: &CudaContext) -> Result<(), String> {
    let inner = &comm.inner;
    let (session, settings) = (&inner.world.session, &inner.world.settings);
    if !settings.gpu.dma_buf {
        return Err(format!("SPARK_CCL_GPU_DMABUF=0 on rank {}", comm.rank()));
    }
    if settings.path == Path::Safe {
        return Err(format!("SPARK_CCL_PATH=safe on rank {}", comm.rank()));
    }
    if !Slots::are_for(comm.size()) {
        return Err(format!("no kernels of slots are for {} ranks", comm.size()));
    }
    // Relaxed: it orders nothing else.
    if IS_OUT_OF_REACH.load(Ordering::Relaxed) {
        return Err("a pattern did not come that way before".to_owned());
    }
    // A processor carries slots between ranks of a host, and reaches no memory of GPUs.
    let mut others = (0..comm.size()).filter(|&rank| rank != comm.rank());
    if let Some(rank) = others.find(|&rank| shares_memory(session, settings, inner.members[rank])) {
        let [own, other] = [comm.rank(), rank].map(|rank| inner.watch.member(rank as u32));
        return Err(format!(
            "{own} and {other} share memory, so no device carries their slots"
        ));
    }
    let traits = rdma_traits(context.ordinal()).map_err(|error| error.to_string())?;
    if let Some(obstacle) = traits.obstacle() {
        return Err(obstacle);
    }
    let registry = inner.registry.as_ref();
    let registry = registry.ok_or("no memory is registered with RDMA devices")?;
    registry.lacks_dmabufs().map_or(Ok(()), Err)
}
