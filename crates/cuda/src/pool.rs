//! Peer access to memory from `cuMemAllocAsync`.

use cudarc::driver::{CudaContext, result, sys};

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
    // SAFETY: the context's device exists.
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

/// Whether a device can access the memory of another.
fn reaches(from: usize, to: usize) -> bool {
    let mut can = 0;
    // SAFETY: the driver writes one number to `can`.
    let status = unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, from as i32, to as i32) };
    status == sys::CUresult::CUDA_SUCCESS && can != 0
}

fn access(ordinal: usize) -> sys::CUmemAccessDesc {
    let location = Location {
        kind: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        device: ordinal as i32,
    };
    sys::CUmemAccessDesc {
        // SAFETY: both are the same C structure of a 32-bit enumeration and a 32-bit number; the
        // compiler checks that the sizes are equal.
        location: unsafe { std::mem::transmute::<Location, sys::CUmemLocation>(location) },
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    }
}

/// `CUmemLocation`. The name of its second field in cudarc depends on the version of CUDA.
#[repr(C)]
struct Location {
    kind: sys::CUmemLocationType,
    device: i32,
}
