//! The state of streams, waits between them, and streams of this library.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, result, sys};

use crate::asked::answer;
use crate::current::make_current;
use crate::driver::function;
use crate::{Error, checked};

/// The bytes of one copy.
const PIECE: usize = 4 << 20;
/// `CU_STREAM_PER_THREAD`.
pub(crate) const PER_THREAD: usize = 2;

/// Whether everything in a stream has run. Does not wait.
///
/// # Errors
/// The driver reports an error, possibly of earlier work, such as an access to unmapped memory.
pub fn is_idle(stream: &CudaStream) -> Result<bool, Error> {
    let device = make_stream_current(stream)?;
    let _relaxed = relaxed(device)?;
    // SAFETY: the stream is borrowed, so it has not been destroyed.
    match unsafe { sys::cuStreamQuery(stream.cu_stream()) } {
        sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        status => checked("cuStreamQuery", device, status.result()).map(|()| true),
    }
}

/// Whether work enqueued in a stream is captured into a graph.
///
/// # Errors
/// The driver fails.
pub fn is_capturing(stream: &CudaStream) -> Result<bool, Error> {
    let ask = || {
        let device = make_stream_current(stream)?;
        // SAFETY: the stream is borrowed, so it has not been destroyed. The driver writes one
        // number, to a variable of `is_capturing`.
        let status = unsafe { result::stream::is_capturing(stream.cu_stream()) };
        let status = checked("cuStreamIsCapturing", device, status)?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    };
    answer(stream, |answers| &mut answers.captures, ask)
}

/// The driver's number of the graph capture that a stream takes part in: all streams of a capture
/// have the same number, and no other capture ever gets it. `None` if the stream captures nothing,
/// or the driver (before CUDA 11.3) does not tell.
///
/// # Errors
/// The driver fails.
pub fn capture_of(stream: &CudaStream) -> Result<Option<u64>, Error> {
    type Function = unsafe extern "C" fn(
        sys::CUstream,
        *mut sys::CUstreamCaptureStatus,
        *mut u64,
        *mut sys::CUgraph,
        *mut *const sys::CUgraphNode,
        *mut usize,
    ) -> sys::CUresult;
    let device = make_stream_current(stream)?;
    // SAFETY: the function has this type in every version of CUDA that has it.
    let found = unsafe { function::<Function>("cuStreamGetCaptureInfo_v2") };
    let Ok(ask) = found else {
        return Ok(None);
    };
    let (mut status, mut id) = (sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE, 0);
    // SAFETY: the stream is borrowed, so it has not been destroyed. The driver writes a status to
    // `status`, and a number to `id` while the stream captures, both local variables of these
    // types; the other results may be null.
    let asked = unsafe {
        ask(
            stream.cu_stream(),
            &raw mut status,
            &raw mut id,
            ptr::null_mut(),
            ptr::null_mut(),
            ptr::null_mut(),
        )
    };
    checked("cuStreamGetCaptureInfo", device, asked.result())?;
    let captures = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
    Ok((status == captures).then_some(id))
}

/// Makes a stream wait for the work that an event was recorded after. Unlike cudarc's wait, it does
/// not take the error that cudarc stores for its next call.
///
/// # Safety
/// The event must be live.
///
/// # Errors
/// The driver fails; the stream then does not wait.
pub(crate) unsafe fn wait_for(stream: &CudaStream, event: sys::CUevent) -> Result<(), Error> {
    let device = make_stream_current(stream)?;
    let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
    // SAFETY: the caller keeps the event until this returns. The stream is borrowed, so it has not
    // been destroyed.
    let status = unsafe { result::stream::wait_event(stream.cu_stream(), event, flags) };
    checked("cuStreamWaitEvent", device, status)
}

/// A stream that cudarc creates and counts: while there is one, cudarc orders the uses of its
/// buffers between streams. Creating the first one waits for all work in the context.
///
/// # Errors
/// The driver fails.
pub fn counted_stream(context: &Arc<CudaContext>) -> Result<Arc<CudaStream>, Error> {
    let device = make_current(context)?;
    let _relaxed = relaxed(device)?;
    let made = apart(context, || context.new_stream());
    checked("cuStreamCreate", device, made)
}

/// Calls cudarc without the stored error of an earlier call, which cudarc would return from this
/// one.
pub(crate) fn apart<R>(context: &CudaContext, call: impl FnOnce() -> R) -> R {
    let kept = context.check_err();
    let result = call();
    context.record_err(kept);
    result
}

/// A stream of this library, which does not synchronize with the null stream, and in which only
/// this library enqueues work.
#[derive(Debug)]
pub struct OwnStream {
    stream: Arc<CudaStream>,
}

impl OwnStream {
    /// Creates a stream.
    ///
    /// # Errors
    /// The driver fails.
    pub fn new(context: &Arc<CudaContext>) -> Result<Self, Error> {
        let device = make_current(context)?;
        let _relaxed = relaxed(device)?;
        let made = result::stream::create(result::stream::StreamKind::NonBlocking);
        let raw = checked("cuStreamCreate", device, made)?;
        // SAFETY: the stream belongs to that context. It is destroyed only in `drop`, and the
        // wrapper is only lent.
        let stream = unsafe { context.wrap_borrowed_stream(raw) };
        Ok(Self { stream })
    }

    /// The stream, for kernels of this library.
    pub fn inner(&self) -> &CudaStream {
        &self.stream
    }

    /// Waits until everything in it has run.
    ///
    /// # Errors
    /// The driver reports an error, possibly of earlier work.
    pub fn synchronize(&self) -> Result<(), Error> {
        let device = make_stream_current(&self.stream)?;
        // SAFETY: `self` owns the stream, and destroys it only in `drop`.
        let status = unsafe { result::stream::synchronize(self.stream.cu_stream()) };
        checked("cuStreamSynchronize", device, status)
    }

    /// Sets bytes of device memory to zero, and waits for that.
    ///
    /// # Safety
    /// `to` must be the start of this many bytes of device memory, which nothing else uses; after
    /// an error, for good.
    ///
    /// # Errors
    /// The driver fails.
    pub(crate) unsafe fn fill_zeros(&self, to: u64, bytes: usize) -> Result<(), Error> {
        let device = make_stream_current(&self.stream)?;
        // Without this, captures of other threads would make the wait fail.
        let _relaxed = relaxed(device)?;
        // SAFETY: the caller says that `bytes` bytes of device memory begin at `to`, and lets
        // nothing else use them until this returns, or ever after an error. The stream is destroyed
        // only in `drop`, so not while `self` is borrowed.
        let status = unsafe { result::memset_d8_async(to, 0, bytes, self.stream.cu_stream()) };
        checked("cuMemsetD8Async", device, status)?;
        self.synchronize()
    }

    /// Copies values to device memory, and waits for the copy. If the wait fails, the copy may
    /// still run: it never uses the values themselves, only a copy of them, which is then leaked.
    ///
    /// # Safety
    /// `to` must be the start of device memory that is at least as long as the values, and that
    /// nothing else uses; after an error, for good.
    ///
    /// # Errors
    /// The driver fails.
    pub unsafe fn write<T: Copy>(&self, mut to: u64, values: &[T]) -> Result<(), Error> {
        let device = make_stream_current(&self.stream)?;
        // Without this, captures of other threads would make the wait fail, which leaks memory.
        let _relaxed = relaxed(device)?;
        for part in values.chunks(per_piece::<T>()) {
            let piece = ManuallyDrop::new(part.to_vec());
            // SAFETY: the device memory is at least as long as the values. The caller lets nothing
            // else use it until this returns, or ever after an error. `to` has advanced by the
            // pieces before, so as much of both is left. The piece is freed only after the wait for
            // its copy has succeeded. The stream is destroyed only in `drop`, so not while `self`
            // is borrowed.
            let status =
                unsafe { result::memcpy_htod_async(to, &piece[..], self.stream.cu_stream()) };
            checked("cuMemcpyHtoDAsync", device, status).and(self.synchronize())?;
            drop(ManuallyDrop::into_inner(piece));
            to += size_of_val(part) as u64;
        }
        Ok(())
    }

    /// Enqueues a copy of values to device memory, and does not wait for it.
    ///
    /// # Safety
    /// `to` must be the start of device memory that is at least as long as the values, until the
    /// copy has run. Nothing else may use it meanwhile, except kernels by atomic accesses.
    ///
    /// # Errors
    /// The driver fails.
    pub unsafe fn begin_write<T: Copy>(&self, to: u64, values: &'static [T]) -> Result<(), Error> {
        let device = make_stream_current(&self.stream)?;
        // Without this, the copy would break captures of other threads.
        let _relaxed = relaxed(device)?;
        // SAFETY: the caller keeps the device memory, at least as long as the values, until the
        // copy has run, and lets only kernels use it meanwhile, by atomic accesses. The values live
        // for ever. The stream is destroyed only in `drop`, after which enqueued work still runs.
        let status = unsafe { result::memcpy_htod_async(to, values, self.stream.cu_stream()) };
        checked("cuMemcpyHtoDAsync", device, status)
    }

    /// Copies values from device memory, and waits for the copy. If the wait fails, the copy may
    /// still run: it never uses the values themselves, only other memory, which is then leaked.
    ///
    /// # Safety
    /// `from` must be the start of device memory that is at least as long as the values, and that
    /// nothing writes; after an error, for good. Its bytes must be valid values of `T`.
    ///
    /// # Errors
    /// The driver fails.
    pub unsafe fn read<T: Copy>(&self, mut from: u64, values: &mut [T]) -> Result<(), Error> {
        let device = make_stream_current(&self.stream)?;
        // Without this, captures of other threads would make the wait fail, which leaks memory.
        let _relaxed = relaxed(device)?;
        for part in values.chunks_mut(per_piece::<T>()) {
            let mut piece = ManuallyDrop::new(part.to_vec());
            // SAFETY: the device memory is at least as long as the values, and its bytes are valid
            // values of `T`. The caller lets nothing write it until this returns, or ever after an
            // error. `from` has advanced by the pieces before, so as much of both is left. The
            // piece is freed only after the wait for its copy has succeeded. The stream is
            // destroyed only in `drop`, so not while `self` is borrowed.
            let status =
                unsafe { result::memcpy_dtoh_async(&mut piece[..], from, self.stream.cu_stream()) };
            checked("cuMemcpyDtoHAsync", device, status).and(self.synchronize())?;
            part.copy_from_slice(&piece);
            drop(ManuallyDrop::into_inner(piece));
            from += size_of_val(part) as u64;
        }
        Ok(())
    }
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        // SAFETY: `new` created the stream, its wrapper does not destroy it, and nothing else keeps
        // the handle. Enqueued work still runs. The call fails only if the context has failed,
        // which frees its streams.
        let _ = unsafe { result::stream::destroy(self.stream.cu_stream()) };
    }
}

/// The values of one copy.
fn per_piece<T>() -> usize {
    (PIECE / size_of::<T>().max(1)).max(1)
}

/// Makes a stream's context current, which identifies the device of a null stream; returns the
/// device.
fn make_stream_current(stream: &CudaStream) -> Result<usize, Error> {
    make_current(stream.context())
}

/// Whether the handle means a different stream in each thread.
pub fn is_of_the_thread(stream: &CudaStream) -> bool {
    stream.cu_stream().addr() == PER_THREAD
}

/// Lets this thread create and query events while other threads capture graphs, until the value is
/// dropped. In CUDA's default mode, that invalidates their captures.
///
/// # Errors
/// The driver fails.
pub fn relaxed(device: usize) -> Result<Relaxed, Error> {
    exchange(
        device,
        sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
    )
}

/// A thread in relaxed capture mode, in which it does not invalidate captures.
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub struct Relaxed {
    device: usize,
    before: sys::CUstreamCaptureMode,
    /// The mode belongs to this thread.
    not_send: PhantomData<*const ()>,
}

fn exchange(device: usize, mut mode: sys::CUstreamCaptureMode) -> Result<Relaxed, Error> {
    // SAFETY: the driver reads the new mode from `mode`, and writes the previous one to it.
    let status = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
    checked("cuThreadExchangeStreamCaptureMode", device, status.result())?;
    Ok(Relaxed {
        device,
        before: mode,
        not_send: PhantomData,
    })
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // The new guard is forgotten, so that its drop does not switch the mode again. The call
        // fails only if every call does.
        let _ = exchange(self.device, self.before).map(std::mem::forget);
    }
}
