//! What a stream is at.

use cudarc::driver::{CudaStream, sys};

use crate::{Error, checked};

/// Whether all in a stream has run. It does not wait.
///
/// # Errors
/// An error of the driver, also of what ran before, such as an access to memory that is not there.
pub fn is_idle(stream: &CudaStream) -> Result<bool, Error> {
    // SAFETY: the stream lives.
    match unsafe { sys::cuStreamQuery(stream.cu_stream()) } {
        sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        said => checked("cuStreamQuery", stream.context().ordinal(), said.result()).map(|()| true),
    }
}

/// Whether what is enqueued in a stream becomes part of a graph.
///
/// # Errors
/// The driver's.
pub fn is_capturing(stream: &CudaStream) -> Result<bool, Error> {
    let status = checked(
        "cuStreamIsCapturing",
        stream.context().ordinal(),
        stream.capture_status(),
    )?;
    Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}
