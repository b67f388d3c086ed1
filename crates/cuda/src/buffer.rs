//! cudarc's buffers: their addresses, and the events that order their uses in several streams.
//!
//! cudarc gives access to an event only together with a wait for it in a stream. If that wait
//! fails, cudarc stores the error in the context, where the next call of any thread takes it, so a
//! failed wait can look successful. This module reads the events without a wait, and waits itself,
//! so that each call gets its own errors.

use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::driver::sys::CUresult;
use cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, CudaViewMut, DevicePtr, DevicePtrMut, DriverError,
    SyncOnDrop, result, sys,
};

use crate::current::make_current;
use crate::stream::wait_for;
use crate::{Error, checked};

/// The state of a cudarc buffer, which it does not keep alive. cudarc destroys the buffer's events
/// with it, so methods that use the events are unsafe.
///
/// ```compile_fail
/// use spark_ccl_cuda::{Buffer, Error, cudarc::driver::CudaStream};
///
/// fn note(buffer: &Buffer, stream: &CudaStream) -> Result<(), Error> {
///     buffer.was_used(stream)
/// }
/// ```
#[derive(Debug, Clone)]
pub struct Buffer {
    /// Its address on the device.
    pub address: u64,
    /// How many elements it has.
    pub len: usize,
    /// The stream in which it was allocated, and is freed.
    pub stream: Arc<CudaStream>,
    /// The events of cudarc's last read and of the last write; null if the buffer was made while
    /// cudarc's event tracking was off.
    read: sys::CUevent,
    write: sys::CUevent,
}

// SAFETY: the driver accepts events on any thread, and the handles are never dereferenced here.
unsafe impl Send for Buffer {}
// SAFETY: through a shared reference, the handles are only passed to the driver, which locks.
unsafe impl Sync for Buffer {}

/// A cudarc buffer whose events can be read.
///
/// A `CudaView` does not qualify: it gives no access to the event of the last write, for which
/// later readers must wait.
pub trait Observed {
    /// Reads the buffer's state.
    ///
    /// # Errors
    /// The driver fails.
    fn observe(&self) -> Result<Buffer, Error>;
}

// `observe` copies these structures, and is only sound for the fields that it was written for.
const _: () = assert!(
    size_of::<CudaSlice<u8>>() == 56,
    "this version of cudarc has another buffer layout than spark-ccl supports"
);

impl<T> Observed for CudaSlice<T> {
    fn observe(&self) -> Result<Buffer, Error> {
        // SAFETY: in cudarc 0.19 a slice consists of an address, a length, two event handles and
        // reference-counted pointers, and reading its events changes none of them. `ManuallyDrop`
        // keeps the copy from being dropped, and `self` outlives it.
        let copy = ManuallyDrop::new(unsafe { std::ptr::read(self) });
        observe(copy)
    }
}

impl<T> Observed for CudaViewMut<'_, T> {
    fn observe(&self) -> Result<Buffer, Error> {
        // SAFETY: in cudarc 0.19 a mutable view consists of an address, a length and shared
        // references into its slice, and reading its events changes none of them. It has nothing to
        // drop, and `self` outlives the copy.
        let copy = ManuallyDrop::new(unsafe { std::ptr::read(self) });
        observe(copy)
    }
}

fn observe<T, B: DevicePtr<T> + DevicePtrMut<T>>(
    mut buffer: ManuallyDrop<B>,
) -> Result<Buffer, Error> {
    let stream = Arc::clone(buffer.stream());
    let failing = FailingStream::find(stream.context().ordinal())?;
    let (address, read) = failing.with(|failing| {
        let (address, read) = buffer.device_ptr(failing);
        (address, event(read))
    });
    let write = failing.with(|failing| event(buffer.device_ptr_mut(failing).1));
    Ok(Buffer {
        address,
        len: buffer.len(),
        stream,
        read,
        write,
    })
}

/// Takes the event from a guard, without recording it as the guard's drop would.
fn event(record: SyncOnDrop<'_>) -> sys::CUevent {
    let event = match &record {
        SyncOnDrop::Record(Some((event, _))) => event.cu_event(),
        SyncOnDrop::Record(None) | SyncOnDrop::Sync(_) => std::ptr::null_mut(),
    };
    std::mem::forget(record);
    event
}

impl Buffer {
    /// Makes a stream wait for the last write; if the stream `writes`, also for the last reads.
    ///
    /// # Safety
    /// The buffer that was observed must not have been dropped.
    ///
    /// # Errors
    /// The driver fails; the stream may then not wait.
    pub unsafe fn hold_back(&self, stream: &CudaStream, writes: bool) -> Result<(), Error> {
        let events = [Some(self.write), writes.then_some(self.read)];
        for event in events.into_iter().flatten() {
            if self.is_tracked(event) {
                // SAFETY: the event was created with the buffer and is destroyed with it, and the
                // caller keeps the buffer until this returns. The stream is borrowed, so it exists.
                unsafe { wait_for(stream, event)? };
            }
        }
        Ok(())
    }

    /// Whether uses of the buffer in several streams are tracked; otherwise the user orders the
    /// streams.
    pub fn is_kept_in_order(&self) -> bool {
        self.is_tracked(self.write)
    }

    /// Makes all later users of the buffer wait for what is enqueued in the stream so far, which
    /// reads or writes the buffer.
    ///
    /// It records the event of a write, even after a read, because cudarc overwrites the event of
    /// earlier reads at its next read. The calls of a group, or of several threads, may read the
    /// buffer at the same time. So the stream first waits for the uses already recorded: a wait for
    /// the last use is then a wait for all.
    ///
    /// # Safety
    /// The buffer that was observed must not have been dropped.
    ///
    /// # Errors
    /// The driver fails; later users then do not wait.
    pub unsafe fn was_used(&self, stream: &CudaStream) -> Result<(), Error> {
        /// Keeps other threads from recording the event between this wait and this record. One for
        /// each device: where memory is freed, the driver holds up the threads of that device.
        static NOTING: [Mutex<()>; 16] = [const { Mutex::new(()) }; 16];
        if !self.is_tracked(self.write) {
            return Ok(());
        }
        let device = make_current(stream.context())?;
        let noting = &NOTING[device % NOTING.len()];
        let _noting = noting.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the event was created with the buffer and is destroyed with it, and the caller
        // keeps the buffer until this returns. The stream is borrowed, so it exists.
        unsafe { wait_for(stream, self.write)? };
        // SAFETY: the event was created with the buffer and is destroyed with it, and the caller
        // keeps the buffer until this returns. The stream is borrowed, so it exists.
        let recorded = unsafe { result::event::record(self.write, stream.cu_stream()) };
        checked("cuEventRecord", device, recorded)
    }

    /// Whether there is an event, and cudarc's event tracking is on.
    fn is_tracked(&self, event: sys::CUevent) -> bool {
        !event.is_null() && self.stream.context().is_event_tracking()
    }
}

/// A stream in which every cudarc call fails: its context stores an error for the next call, which
/// returns that error and stores it again.
struct FailingStream(Mutex<Arc<CudaStream>>);

impl FailingStream {
    /// One stream for all devices, as long as it is in use. Its context is a primary context, which
    /// it retains.
    fn find(ordinal: usize) -> Result<Arc<Self>, Error> {
        static KNOWN: Mutex<Weak<FailingStream>> = Mutex::new(Weak::new());
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(failing) = known.upgrade() {
            return Ok(failing);
        }
        let context = checked(
            "cuDevicePrimaryCtxRetain",
            ordinal,
            CudaContext::new(ordinal),
        )?;
        let failing = Arc::new(Self(Mutex::new(context.default_stream())));
        *known = Arc::downgrade(&failing);
        Ok(failing)
    }

    fn with<R>(&self, ask: impl FnOnce(&CudaStream) -> R) -> R {
        let stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let error = DriverError(CUresult::CUDA_ERROR_NOT_PERMITTED);
        stream.context().record_err(Err::<(), _>(error));
        ask(&stream)
    }
}

/// Keeps the stream that [`Observed::observe`] uses, which is slow to create.
#[derive(Clone)]
pub struct Observer(
    #[expect(dead_code, reason = "only keeps the stream alive")] Arc<FailingStream>,
);

impl Observer {
    /// For the buffers of a device.
    ///
    /// # Errors
    /// The driver fails.
    pub fn new(ordinal: usize) -> Result<Self, Error> {
        FailingStream::find(ordinal).map(Self)
    }
}

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Observer").finish()
    }
}
