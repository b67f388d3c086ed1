//! Streams of other libraries, by their handles. Checks that they fit the context; destroys none of
//! them.

use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{CudaContext, CudaStream, sys};

use crate::current::make_current;
use crate::stream::{PER_THREAD, capture_of, counted_stream, is_capturing};
use crate::{Error, EventPool, checked};

/// Wraps a stream of the user or of another library, given its handle. Null and `CU_STREAM_LEGACY`
/// are the context's legacy default stream.
///
/// # Safety
/// The handle is null, `CU_STREAM_LEGACY`, `CU_STREAM_PER_THREAD`, or that of a stream that
/// outlives the value returned, all its clones, and all buffers that were allocated with it.
///
/// # Errors
/// The stream is of another context, or the per-thread default stream; the driver fails.
pub unsafe fn borrow_stream(
    context: &Arc<CudaContext>,
    raw: sys::CUstream,
) -> Result<Arc<CudaStream>, Error> {
    if raw.addr() == PER_THREAD {
        return Err(Error::Stream {
            device: context.ordinal(),
            problem: "the per-thread default stream is another one in each thread; pass a stream \
                      that is made",
        });
    }
    // SAFETY: the handle is null, `CU_STREAM_LEGACY` or `CU_STREAM_PER_THREAD`, or the caller keeps
    // its stream long enough: until the value returned, all its clones and all buffers allocated
    // with it are dropped.
    unsafe { wrap(context, raw) }
}

/// # Safety
/// The handle is null, `CU_STREAM_LEGACY`, `CU_STREAM_PER_THREAD`, or that of a stream that
/// outlives the value returned, all its clones, and all buffers that were allocated with it.
unsafe fn wrap(context: &Arc<CudaContext>, raw: sys::CUstream) -> Result<Arc<CudaStream>, Error> {
    let device = make_current(context)?;
    let mut owner = ptr::null_mut();
    // SAFETY: the caller says that the handle names a default stream, or one that is alive. The
    // driver writes one handle, to `owner`, which is a local variable of that type.
    let status = unsafe { sys::cuStreamGetCtx(raw, &raw mut owner) };
    checked("cuStreamGetCtx", device, status.result())?;
    if owner != context.cu_ctx() {
        return Err(Error::Stream {
            device,
            problem: "it is of another context; pass one of the primary context of this device",
        });
    }
    // SAFETY: the stream is of this context, which was just checked. The caller keeps it until the
    // wrapper, its clones and its buffers are dropped, and the wrapper does not destroy it. Work
    // that others enqueue there runs in the stream's order.
    Ok(unsafe { context.wrap_borrowed_stream(raw) })
}

/// Streams beside the per-thread default streams of threads that capture graphs. One that has
/// joined a capture is of no other use until that ends.
#[derive(Debug, Default)]
pub struct CaptureStreams(Mutex<Vec<Arc<CudaStream>>>);

impl CaptureStreams {
    /// A stream that joins the capture of the per-thread default stream `thread`. Where the driver
    /// tells captures apart, each has one.
    fn join(
        &self,
        context: &Arc<CudaContext>,
        thread: &Arc<CudaStream>,
        events: &Arc<EventPool>,
    ) -> Result<Arc<CudaStream>, Error> {
        let capture = capture_of(thread)?;
        // Locked until the stream has joined, so that no other thread takes it.
        let mut streams = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = None;
        for stream in &*streams {
            if capture.is_some() && capture_of(stream)? == capture {
                found = Some(stream);
                break;
            }
            if found.is_none() && !is_capturing(stream)? {
                found = Some(stream);
            }
        }
        let stream = if let Some(stream) = found {
            Arc::clone(stream)
        } else {
            let made = counted_stream(context)?;
            streams.push(Arc::clone(&made));
            made
        };
        events.record(thread)?.hold_back(&stream)?;
        Ok(stream)
    }
}

/// The stream in which this library enqueues a call that another library has ordered. Usually that
/// is the other library's stream itself. For the per-thread default stream it is a stream of ours:
/// it waits for the default stream before the call, and the default stream waits for it afterwards.
#[derive(Debug)]
pub struct CallStream {
    inner: Arc<CudaStream>,
    /// The per-thread default stream of the thread that made this.
    thread: Option<Arc<CudaStream>>,
}

impl CallStream {
    /// `beside` replaces the per-thread default stream, or one of `captures` where that captures a
    /// graph; it waits for everything enqueued there so far.
    ///
    /// # Safety
    /// The handle is null, `CU_STREAM_LEGACY`, `CU_STREAM_PER_THREAD`, or that of a stream that
    /// outlives the value returned and all clones of [`inner`](Self::inner).
    ///
    /// # Errors
    /// The stream is of another context; the driver fails.
    pub unsafe fn new(
        context: &Arc<CudaContext>,
        raw: sys::CUstream,
        beside: &Arc<CudaStream>,
        captures: &CaptureStreams,
        events: &Arc<EventPool>,
    ) -> Result<Self, Error> {
        // SAFETY: the caller says that the handle names a default stream, or keeps its stream until
        // the value returned and all clones of its stream are dropped. A buffer that is allocated
        // with a clone keeps that clone.
        let own = unsafe { wrap(context, raw) }?;
        if raw.addr() != PER_THREAD {
            return Ok(Self {
                inner: own,
                thread: None,
            });
        }
        let inner = if is_capturing(&own)? {
            captures.join(context, &own, events)?
        } else {
            events.record(&own)?.hold_back(beside)?;
            Arc::clone(beside)
        };
        Ok(Self {
            inner,
            thread: Some(own),
        })
    }

    /// The stream to enqueue in.
    pub fn inner(&self) -> &Arc<CudaStream> {
        &self.inner
    }

    /// Must be called by the same thread once everything is enqueued: the per-thread default stream
    /// then waits for it.
    ///
    /// # Errors
    /// The driver fails.
    pub fn join(&self, events: &Arc<EventPool>) -> Result<(), Error> {
        match &self.thread {
            Some(thread) => events.record(&self.inner)?.hold_back(thread),
            None => Ok(()),
        }
    }
}
