//! Events that are recorded once each, from a pool.

use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::driver::{CudaContext, CudaStream, result, sys};

use crate::stream::{make_current, relaxed, wait_for};
use crate::{Error, checked};

/// Events of a context. To make one takes the driver longer than to record one.
#[derive(Debug)]
pub struct EventPool {
    context: Arc<CudaContext>,
    idle: Mutex<Vec<Event>>,
    /// How many were recorded.
    recorded: Mutex<u64>,
}

/// A place in a stream: the end of all that was enqueued there before.
///
/// It holds neither the stream nor what runs there.
#[derive(Debug)]
pub struct RecordedEvent {
    event: ManuallyDrop<Event>,
    pool: Arc<EventPool>,
    stream: Weak<CudaStream>,
    /// How many the pool had recorded before.
    place: u64,
}

/// An event of the driver's.
#[derive(Debug)]
struct Event(sys::CUevent);

// SAFETY: the driver takes an event on any thread; the handle is a number to all else.
unsafe impl Send for Event {}
// SAFETY: nothing is done with the handle through a shared reference but to pass it to the driver, which locks.
unsafe impl Sync for Event {}

impl EventPool {
    /// No events yet.
    pub fn new(context: Arc<CudaContext>) -> Arc<Self> {
        Arc::new(Self {
            context,
            idle: Mutex::default(),
            recorded: Mutex::default(),
        })
    }

    /// Records an event in a stream of the same context, which captures no graph.
    ///
    /// # Errors
    /// The driver's.
    pub fn record(self: &Arc<Self>, stream: &Arc<CudaStream>) -> Result<RecordedEvent, Error> {
        let device = make_current(&self.context)?;
        let idle = self
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let event = idle.map_or_else(|| Event::new(device), Ok)?;
        // Locked until it is recorded: the places of a stream's events are in the stream's order.
        let mut count = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        let recorded = RecordedEvent {
            event: ManuallyDrop::new(event),
            pool: Arc::clone(self),
            stream: Arc::downgrade(stream),
            place: *count,
        };
        *count += 1;
        // SAFETY: the event lives, since `recorded` has it, and so does the stream, which is borrowed.
        let said = unsafe { result::event::record(recorded.event.0, stream.cu_stream()) };
        checked("cuEventRecord", device, said)?;
        Ok(recorded)
    }
}

impl Drop for EventPool {
    fn drop(&mut self) {
        let idle = self.idle.get_mut().unwrap_or_else(PoisonError::into_inner);
        for Event(event) in idle.drain(..) {
            // SAFETY: it was made by the driver, is in no other place than the pool, and its context lives. Streams
            // that wait for it go on to do so. It fails where the context has failed, and takes its events with it.
            let _ = unsafe { result::event::destroy(event) };
        }
    }
}

impl Event {
    /// In the context that is current.
    fn new(device: usize) -> Result<Self, Error> {
        let _relaxed = relaxed(device)?;
        let made = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
        checked("cuEventCreate", device, made).map(Self)
    }
}

impl RecordedEvent {
    /// Whether the stream has come there. What was drawn into a graph that is being captured is taken to have.
    ///
    /// # Errors
    /// An error of the driver, also of what ran before.
    pub fn is_complete(&self) -> Result<bool, Error> {
        let device = make_current(&self.pool.context)?;
        let _relaxed = relaxed(device)?;
        // SAFETY: the event lives.
        let said = unsafe { sys::cuEventQuery(self.event.0) };
        if said == sys::CUresult::CUDA_ERROR_NOT_READY {
            return Ok(false);
        }
        let complete = checked("cuEventQuery", device, said.result()).map(|()| true);
        complete.or_else(|error| error.is_of_a_capture().then_some(true).ok_or(error))
    }

    /// Whether it was recorded in this very stream: what is enqueued there now runs behind it.
    pub fn is_in(&self, stream: &Arc<CudaStream>) -> bool {
        // While there is a `Weak`, nothing else gets the address.
        std::ptr::eq(self.stream.as_ptr(), Arc::as_ptr(stream))
    }

    /// Whether it is known to come behind another one: of the same pool, it was recorded later in the same stream.
    pub fn follows(&self, other: &Self) -> bool {
        self.stream.ptr_eq(&other.stream)
            && Arc::ptr_eq(&self.pool, &other.pool)
            && self.place > other.place
    }

    /// Makes a stream wait for it.
    ///
    /// # Errors
    /// The driver's; then it does not wait.
    pub fn hold_back(&self, stream: &CudaStream) -> Result<(), Error> {
        // SAFETY: the event lives.
        unsafe { wait_for(stream, self.event.0) }
    }
}

impl Drop for RecordedEvent {
    fn drop(&mut self) {
        // SAFETY: it is taken only here.
        let event = unsafe { ManuallyDrop::take(&mut self.event) };
        // Streams that wait for it wait for what it stood for when they were told to.
        let idle = &self.pool.idle;
        idle.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(event);
    }
}
