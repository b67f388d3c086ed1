//! Which device a rank has.

use candle_core::Device;

use super::ranks::Failure;
#[cfg(feature = "cuda")]
use super::ranks::number;

/// The rank's GPU: those of its host in turn, or that of `--device`.
#[cfg(feature = "cuda")]
pub(crate) fn device(rank: usize) -> Result<Device, Failure> {
    use candle_core::cuda_backend::cudarc::driver::CudaContext;
    let gpus = CudaContext::device_count()?.max(1) as usize;
    let number = number("--device", rank % gpus)?;
    Ok(Device::new_cuda_with_stream(number)?)
}

/// The host.
#[cfg(not(feature = "cuda"))]
#[allow(clippy::unnecessary_wraps, reason = "a GPU may not be there")]
pub(crate) fn device(_: usize) -> Result<Device, Failure> {
    Ok(Device::Cpu)
}
