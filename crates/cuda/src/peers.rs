//! Access of a GPU's kernels to the memory of another.

use cudarc::driver::{CudaContext, sys};

use crate::stream::make_current;
use crate::{Error, Feature, checked, require};

/// How a GPU's kernels reach memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// It is the context's own.
    Own,
    /// Over `NVLink`, or something that passes on atomic operations as that does.
    Link,
    /// Over `PCIe`.
    Pcie,
    /// Not at all.
    None,
}

/// Lets the kernels of a context reach the memory of another one, for good, and says how they do.
///
/// # Errors
/// The driver fails.
pub fn reach(from: &CudaContext, to: &CudaContext) -> Result<Reach, Error> {
    if from.cu_ctx() == to.cu_ctx() {
        return Ok(Reach::Own);
    }
    require(Feature::PeerAccess)?;
    let device = make_current(from)?;
    let mut can = 0;
    // SAFETY: the driver writes one number to `can`; both devices exist.
    let status =
        unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, from.cu_device(), to.cu_device()) };
    checked("cuDeviceCanAccessPeer", device, status.result())?;
    if can == 0 {
        return Ok(Reach::None);
    }
    // SAFETY: both contexts are borrowed, and the first one is current.
    let status = unsafe { sys::cuCtxEnablePeerAccess(to.cu_ctx(), 0) };
    if status != sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED {
        checked("cuCtxEnablePeerAccess", device, status.result())?;
    }
    let attribute = sys::CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
    let mut atomic = 0;
    // SAFETY: the driver writes one number to `atomic`; both devices exist.
    let status = unsafe {
        sys::cuDeviceGetP2PAttribute(&raw mut atomic, attribute, from.cu_device(), to.cu_device())
    };
    checked("cuDeviceGetP2PAttribute", device, status.result())?;
    Ok(if atomic == 0 {
        Reach::Pcie
    } else {
        Reach::Link
    })
}
