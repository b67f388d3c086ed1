//! Peer access to memory from `cuMemAllocAsync`.

use cudarc::driver::{CudaContext, result, sys};

use crate::location::{access, reaches};
use crate::{Error, Feature, checked, require};

/// Lets the other GPUs of this machine access memory from a device's default pool, as they can
/// access memory from `cuMemAlloc`. Between GPUs of one process, NCCL's kernels write straight into
/// the receiver's buffer, and cudarc allocates from that pool.
///
/// # Errors
/// The driver fails.
pub fn share_default_pool(context: &CudaContext) -> Result<(), Error> {
    let own = context.ordinal();
    if !context.has_async_alloc() {
        return Ok(());
    }
    require(Feature::Pools)?;
    // SAFETY: `context` was made for a device that exists. The driver writes one handle, to a
    // variable of `get_default_mem_pool`.
    let pool = unsafe { result::device::get_default_mem_pool(context.cu_device()) };
    let pool = checked("cuDeviceGetDefaultMemPool", own, pool)?;
    let count = checked("cuDeviceGetCount", own, CudaContext::device_count())?;
    let others = (0..count as usize).filter(|&other| other != own);
    let peers: Vec<_> = others
        .filter(|&peer| reaches(peer, own))
        .map(access)
        .collect();
    if peers.is_empty() {
        return Ok(());
    }
    // SAFETY: the pool is the device's, and the driver reads the `peers.len()` descriptions in
    // `peers`.
    let status = unsafe { sys::cuMemPoolSetAccess(pool, peers.as_ptr(), peers.len()) };
    checked("cuMemPoolSetAccess", own, status.result())
}
