//! What a stream is at.

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, result, sys};

use crate::{Error, checked};

/// Whether all in a stream has run. It does not wait.
///
/// # Errors
/// An error of the driver, also of what ran before, such as an access to memory that is not there.
pub fn is_idle(stream: &CudaStream) -> Result<bool, Error> {
    let device = enter(stream)?;
    // SAFETY: the stream lives.
    match unsafe { sys::cuStreamQuery(stream.cu_stream()) } {
        sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        said => checked("cuStreamQuery", device, said.result()).map(|()| true),
    }
}

/// Whether what is enqueued in a stream becomes part of a graph.
///
/// # Errors
/// The driver's.
pub fn is_capturing(stream: &CudaStream) -> Result<bool, Error> {
    let device = enter(stream)?;
    // SAFETY: the stream lives.
    let status = unsafe { result::stream::is_capturing(stream.cu_stream()) };
    let status = checked("cuStreamIsCapturing", device, status)?;
    Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

/// Records an event in a stream. Unlike cudarc's, it leaves errors alone that cudarc keeps for its next caller.
///
/// # Errors
/// The driver's.
pub fn record(event: &CudaEvent, stream: &CudaStream) -> Result<(), Error> {
    let device = enter(stream)?;
    // SAFETY: both live.
    let recorded = unsafe { result::event::record(event.cu_event(), stream.cu_stream()) };
    checked("cuEventRecord", device, recorded)
}

/// Makes a stream's context current, by which the null stream of a device is known; the device.
fn enter(stream: &CudaStream) -> Result<usize, Error> {
    make_current(stream.context())
}

/// Makes a context current on this thread; its device. Unlike cudarc's, it leaves errors alone that cudarc keeps
/// for its next caller, who may be another thread's.
///
/// # Errors
/// The driver's.
pub fn make_current(context: &CudaContext) -> Result<usize, Error> {
    // SAFETY: the context lives.
    let entered = unsafe { result::ctx::set_current(context.cu_ctx()) };
    checked("cuCtxSetCurrent", context.ordinal(), entered)?;
    Ok(context.ordinal())
}

/// Whether it is another stream in each thread.
pub fn is_of_the_thread(stream: &CudaStream) -> bool {
    const PER_THREAD: usize = 2;
    stream.cu_stream().addr() == PER_THREAD
}

/// Lets this thread make events and look at them while other threads capture graphs: by default, that ends their
/// captures.
///
/// # Errors
/// The driver's.
pub fn leave_captures_alone(device: usize) -> Result<(), Error> {
    let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: it reads the mode, and puts the one before there.
    let said = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
    checked("cuThreadExchangeStreamCaptureMode", device, said.result())
}
