//! What a stream is at.

use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, result, sys};

use crate::{Error, checked};

/// Whether all in a stream has run. It does not wait.
///
/// # Errors
/// An error of the driver, also of what ran before, such as an access to memory that is not there.
pub fn is_idle(stream: &CudaStream) -> Result<bool, Error> {
    let device = enter(stream)?;
    let _relaxed = relaxed(device)?;
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

/// Makes a stream wait for what an event was recorded for. Unlike cudarc's, it leaves errors alone that cudarc keeps
/// for its next caller.
///
/// # Safety
/// The event lives.
///
/// # Errors
/// The driver's; then the stream does not wait.
pub(crate) unsafe fn wait_for(stream: &CudaStream, event: sys::CUevent) -> Result<(), Error> {
    let device = enter(stream)?;
    let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
    // SAFETY: the event lives, as the caller promises, and the stream is borrowed.
    let said = unsafe { result::stream::wait_event(stream.cu_stream(), event, flags) };
    checked("cuStreamWaitEvent", device, said)
}

/// A stream that cudarc has made, and counts: while there is one, it keeps the uses of its buffers in order between
/// streams. Before the first one, it waits for all in the context.
///
/// # Errors
/// The driver's.
pub fn counted_stream(context: &Arc<CudaContext>) -> Result<Arc<CudaStream>, Error> {
    let device = make_current(context)?;
    let _relaxed = relaxed(device)?;
    // What cudarc keeps for its next caller would be taken for an error of this call.
    let kept = context.check_err();
    let made = context.new_stream();
    context.record_err(kept);
    checked("cuStreamCreate", device, made)
}

/// A stream of this library's own, which does not wait for the null stream, and in which nobody else can do anything.
#[derive(Debug)]
pub struct OwnStream {
    stream: Arc<CudaStream>,
}

impl OwnStream {
    /// A new one.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(context: &Arc<CudaContext>) -> Result<Self, Error> {
        let device = make_current(context)?;
        let _relaxed = relaxed(device)?;
        let made = result::stream::create(result::stream::StreamKind::NonBlocking);
        let raw = checked("cuStreamCreate", device, made)?;
        // SAFETY: it is a stream of that context, and destroyed with the last reference, in `drop`.
        let stream = unsafe { context.wrap_borrowed_stream(raw) };
        Ok(Self { stream })
    }

    /// Waits until all in it has run.
    ///
    /// # Errors
    /// The driver's, also of what ran.
    pub fn synchronize(&self) -> Result<(), Error> {
        let device = enter(&self.stream)?;
        // SAFETY: the stream lives.
        let said = unsafe { result::stream::synchronize(self.stream.cu_stream()) };
        checked("cuStreamSynchronize", device, said)
    }

    /// Copies values to the device's memory, and waits for that.
    ///
    /// # Safety
    /// From `to` on there is memory of this device, as long as the values, that nothing else uses.
    ///
    /// # Errors
    /// The driver's.
    pub unsafe fn write<T>(&self, to: u64, values: &[T]) -> Result<(), Error> {
        let device = enter(&self.stream)?;
        // SAFETY: there is as much memory, as the caller promises; the values last until the copy has been waited for.
        let said = unsafe { result::memcpy_htod_async(to, values, self.stream.cu_stream()) };
        checked("cuMemcpyHtoDAsync", device, said).and(self.synchronize())
    }

    /// Copies values from the device's memory, and waits for that.
    ///
    /// # Safety
    /// From `from` on there is memory of this device, as long as the values, that nothing writes; all its bits are
    /// values of `T`.
    ///
    /// # Errors
    /// The driver's.
    pub unsafe fn read<T>(&self, from: u64, values: &mut [T]) -> Result<(), Error> {
        let device = enter(&self.stream)?;
        // SAFETY: there is as much memory, as the caller promises; the values last until the copy has been waited for.
        let said = unsafe { result::memcpy_dtoh_async(values, from, self.stream.cu_stream()) };
        checked("cuMemcpyDtoHAsync", device, said).and(self.synchronize())
    }
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        // SAFETY: it was made here, the wrapper does not destroy it, and nobody else has it. What is in it goes on. It
        // fails where the context has failed, and takes its streams with it.
        let _ = unsafe { result::stream::destroy(self.stream.cu_stream()) };
    }
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

/// Lets this thread make events and look at them while other threads capture graphs, as long as the value lives: by
/// default, that ends their captures.
///
/// # Errors
/// The driver's.
pub fn relaxed(device: usize) -> Result<Relaxed, Error> {
    exchange(
        device,
        sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
    )
}

/// A thread that leaves captures alone.
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub struct Relaxed {
    device: usize,
    before: sys::CUstreamCaptureMode,
    /// It is about this thread.
    not_send: PhantomData<*const ()>,
}

fn exchange(device: usize, mut mode: sys::CUstreamCaptureMode) -> Result<Relaxed, Error> {
    // SAFETY: it reads the mode, and puts the one before there.
    let said = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
    checked("cuThreadExchangeStreamCaptureMode", device, said.result())?;
    Ok(Relaxed {
        device,
        before: mode,
        not_send: PhantomData,
    })
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // What it says now is dropped without being put back in turn; it fails only where all calls do.
        let _ = exchange(self.device, self.before).map(std::mem::forget);
    }
}
