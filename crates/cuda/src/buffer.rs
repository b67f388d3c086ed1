//! What cudarc knows of a buffer: its address, and the events that keep its uses in order.
//!
//! cudarc hands out an event only with a wait for it in a stream, and leaves an error of that wait in a slot of the
//! context, which the next call of any thread empties. So a wait that failed may look as if it had been made. Here the
//! events are read without a wait, and calls wait by themselves, with errors that are theirs.

use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::driver::sys::CUresult;
use cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, CudaViewMut, DevicePtr, DevicePtrMut, DriverError,
    SyncOnDrop, result, sys,
};

use crate::stream::{make_current, wait_for};
use crate::{Error, checked};

/// A buffer of cudarc's.
#[derive(Debug, Clone)]
pub struct Buffer {
    /// Its address, for CUDA.
    pub address: u64,
    /// How many elements it has.
    pub len: usize,
    /// The stream that it was made with, and is freed in.
    pub stream: Arc<CudaStream>,
    /// Of the last read by cudarc, and of the last write; null where it has none, since it was made while cudarc's
    /// event tracking was off.
    read: sys::CUevent,
    write: sys::CUevent,
}

// SAFETY: the driver takes events on any thread; the handles are numbers to all else.
unsafe impl Send for Buffer {}
// SAFETY: nothing is done with the handles through a shared reference but to pass them to the driver, which locks.
unsafe impl Sync for Buffer {}

/// A buffer of cudarc's whose events can be read.
///
/// A `CudaView` is none: it keeps the event of the last write, for which later readers wait, to itself.
pub trait Observed {
    /// What cudarc knows of it. The events are there as long as the buffer is.
    ///
    /// # Errors
    /// The driver's.
    fn observe(&self) -> Result<Buffer, Error>;
}

// A slice whose fields are others may not be read as `observe` does.
const _: () = assert!(
    size_of::<CudaSlice<u8>>() == 56,
    "this version of cudarc has other buffers than those that spark-ccl knows"
);

impl<T> Observed for CudaSlice<T> {
    fn observe(&self) -> Result<Buffer, Error> {
        // SAFETY: a slice of cudarc 0.19 is an address, a length, two handles of events and counted references, none
        // of which asking for its events changes; the copy is not dropped, and gone before `self` is.
        let copy = ManuallyDrop::new(unsafe { std::ptr::read(self) });
        observe(copy)
    }
}

impl<T> Observed for CudaViewMut<'_, T> {
    fn observe(&self) -> Result<Buffer, Error> {
        // SAFETY: a mutable view of cudarc 0.19 is an address, a length and shared references to what its slice has,
        // none of which asking for its events changes; it has nothing to drop, and is gone before `self` is.
        let copy = ManuallyDrop::new(unsafe { std::ptr::read(self) });
        observe(copy)
    }
}

fn observe<T, B: DevicePtr<T> + DevicePtrMut<T>>(
    mut buffer: ManuallyDrop<B>,
) -> Result<Buffer, Error> {
    let stream = Arc::clone(buffer.stream());
    let nowhere = Nowhere::find(stream.context().ordinal())?;
    let (address, read) = nowhere.with(|nowhere| {
        let (address, read) = buffer.device_ptr(nowhere);
        (address, event(read))
    });
    let write = nowhere.with(|nowhere| event(buffer.device_ptr_mut(nowhere).1));
    Ok(Buffer {
        address,
        len: buffer.len(),
        stream,
        read,
        write,
    })
}

/// The event, which is not recorded.
fn event(record: SyncOnDrop<'_>) -> sys::CUevent {
    let event = match &record {
        SyncOnDrop::Record(Some((event, _))) => event.cu_event(),
        SyncOnDrop::Record(None) | SyncOnDrop::Sync(_) => std::ptr::null_mut(),
    };
    std::mem::forget(record);
    event
}

impl Buffer {
    /// Makes a stream wait for the last write; and for the last reads, before it `writes` itself.
    ///
    /// # Errors
    /// The driver's; then the stream may not wait.
    pub fn hold_back(&self, stream: &CudaStream, writes: bool) -> Result<(), Error> {
        let events = [Some(self.write), writes.then_some(self.read)];
        for event in events.into_iter().flatten() {
            if self.is_tracked(event) {
                // SAFETY: the buffer lives, as `observe` demands, and with it the event.
                unsafe { wait_for(stream, event)? };
            }
        }
        Ok(())
    }

    /// Whether it tells of its uses in other streams: the program has not taken the order of streams upon itself.
    pub fn is_kept_in_order(&self) -> bool {
        self.is_tracked(self.write)
    }

    /// Makes all who use it next wait for the stream, where it is read or written up to here.
    ///
    /// That is the event of a write, also after a read: who reads next by cudarc makes it forget earlier reads. Calls
    /// of a group, or of several threads, may read it at the same time: the stream waits for those that are noted
    /// already, so that who waits for the last one waits for all.
    ///
    /// # Errors
    /// The driver's; then nobody waits.
    pub fn was_used(&self, stream: &CudaStream) -> Result<(), Error> {
        /// Nobody records the event between the wait for it and its next record.
        static NOTING: Mutex<()> = Mutex::new(());
        if !self.is_tracked(self.write) {
            return Ok(());
        }
        let device = make_current(stream.context())?;
        let _noting = NOTING.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the buffer lives, as `observe` demands, and with it the event.
        unsafe { wait_for(stream, self.write)? };
        // SAFETY: the buffer lives, as `observe` demands, and with it the event; the stream is borrowed.
        let recorded = unsafe { result::event::record(self.write, stream.cu_stream()) };
        checked("cuEventRecord", device, recorded)
    }

    /// Whether an event is there, and the program has not taken the order of streams upon itself.
    fn is_tracked(&self, event: sys::CUevent) -> bool {
        !event.is_null() && self.stream.context().is_event_tracking()
    }
}

/// A stream in which cudarc cannot do anything: its context has an error waiting for the next call, so that call
/// returns it, and leaves it there again.
struct Nowhere(Mutex<Arc<CudaStream>>);

impl Nowhere {
    /// One for all, while somebody needs it: its context is the device's primary one, which is retained with it.
    fn find(ordinal: usize) -> Result<Arc<Self>, Error> {
        static KNOWN: Mutex<Weak<Nowhere>> = Mutex::new(Weak::new());
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(nowhere) = known.upgrade() {
            return Ok(nowhere);
        }
        let context = checked(
            "cuDevicePrimaryCtxRetain",
            ordinal,
            CudaContext::new(ordinal),
        )?;
        let nowhere = Arc::new(Self(Mutex::new(context.default_stream())));
        *known = Arc::downgrade(&nowhere);
        Ok(nowhere)
    }

    fn with<R>(&self, ask: impl FnOnce(&CudaStream) -> R) -> R {
        let stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let error = DriverError(CUresult::CUDA_ERROR_NOT_PERMITTED);
        stream.context().record_err(Err::<(), _>(error));
        ask(&stream)
    }
}

/// Keeps what [`Observed::observe`] needs, which takes a while to make.
#[derive(Clone)]
pub struct Observer(#[expect(dead_code, reason = "it is there to be kept")] Arc<Nowhere>);

impl Observer {
    /// For buffers of a device.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(ordinal: usize) -> Result<Self, Error> {
        Nowhere::find(ordinal).map(Self)
    }
}

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Observer").finish()
    }
}
