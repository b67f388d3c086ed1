//! Events from a pool. Each is recorded once.

use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::driver::{CudaContext, CudaStream, result, sys};

use crate::current::make_current;
use crate::ids::stream_id;
use crate::stream::{relaxed, wait_for};
use crate::{Error, checked};

/// How many events a pool creates at once. Each call that is enqueued and has not run needs one. If
/// they were created singly, a benchmark's first timed calls would create most of them.
const TOGETHER: usize = 64;

/// The events of a context. The driver takes longer to create an event than to record one.
#[derive(Debug)]
pub struct EventPool {
    context: Arc<CudaContext>,
    idle: Mutex<Vec<Event>>,
    /// How many events have been recorded.
    recorded: Mutex<u64>,
}

/// A position in a stream: the end of everything that was enqueued there before.
///
/// It keeps neither the stream nor the enqueued work alive.
#[derive(Debug)]
pub struct RecordedEvent {
    event: ManuallyDrop<Event>,
    pool: Arc<EventPool>,
    stream: Weak<CudaStream>,
    /// The driver's number of the stream. `None` if the stream captured a graph, or the driver has
    /// no numbers.
    id: Option<u64>,
    /// The driver's handle of the stream.
    handle: usize,
    /// How many events the pool had recorded before this one.
    place: u64,
}

/// A driver event.
#[derive(Debug)]
struct Event(sys::CUevent);

// SAFETY: the driver accepts an event on any thread, and the handle is never dereferenced here.
unsafe impl Send for Event {}
// SAFETY: through a shared reference, the handle is only passed to the driver, which locks.
unsafe impl Sync for Event {}

impl EventPool {
    /// A pool without events.
    pub fn new(context: Arc<CudaContext>) -> Arc<Self> {
        Arc::new(Self {
            context,
            idle: Mutex::default(),
            recorded: Mutex::default(),
        })
    }

    /// Records an event in a stream of the same context. If that captures a graph, only streams of
    /// the same capture can wait for the event.
    ///
    /// # Errors
    /// The driver fails.
    pub fn record(self: &Arc<Self>, stream: &Arc<CudaStream>) -> Result<RecordedEvent, Error> {
        let device = make_current(&self.context)?;
        let event = self.idle(device)?;
        // Locked until the event is recorded, so that the events of a stream are numbered in the
        // stream's order.
        let mut count = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        let recorded = RecordedEvent {
            event: ManuallyDrop::new(event),
            pool: Arc::clone(self),
            stream: Arc::downgrade(stream),
            id: stream_id(stream).ok().flatten(),
            handle: stream.cu_stream().addr(),
            place: *count,
        };
        *count += 1;
        // SAFETY: `recorded` owns the event, so it has not been destroyed. The stream is borrowed,
        // so it exists.
        let status = unsafe { result::event::record(recorded.event.0, stream.cu_stream()) };
        checked("cuEventRecord", device, status)?;
        Ok(recorded)
    }

    /// An event that is not in use.
    fn idle(&self, device: usize) -> Result<Event, Error> {
        let lock = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(event) = lock().pop() {
            return Ok(event);
        }
        let event = Event::new(device)?;
        // If the driver refuses more events, this call still has the first one.
        let more: Vec<_> = (1..TOGETHER)
            .map_while(|_| Event::new(device).ok())
            .collect();
        lock().extend(more);
        Ok(event)
    }
}

impl Drop for EventPool {
    fn drop(&mut self) {
        let idle = self.idle.get_mut().unwrap_or_else(PoisonError::into_inner);
        for Event(event) in idle.drain(..) {
            // SAFETY: the driver created the event, only the pool has it, and the pool keeps its
            // context alive. Streams that wait for the event continue to wait. The call fails only
            // if the context has failed, which frees its events.
            let _ = unsafe { result::event::destroy(event) };
        }
    }
}

impl Event {
    /// Creates an event in the current context.
    fn new(device: usize) -> Result<Self, Error> {
        let _relaxed = relaxed(device)?;
        let made = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
        checked("cuEventCreate", device, made).map(Self)
    }
}

impl RecordedEvent {
    /// Whether the stream has reached the event. An event recorded in a graph that is being
    /// captured counts as reached.
    ///
    /// # Errors
    /// The driver reports an error, possibly of earlier work.
    pub fn is_complete(&self) -> Result<bool, Error> {
        let device = make_current(&self.pool.context)?;
        let _relaxed = relaxed(device)?;
        // SAFETY: `self` owns the event, so it has not been destroyed.
        let status = unsafe { sys::cuEventQuery(self.event.0) };
        if status == sys::CUresult::CUDA_ERROR_NOT_READY {
            return Ok(false);
        }
        let complete = checked("cuEventQuery", device, status.result()).map(|()| true);
        complete.or_else(|error| error.is_of_a_capture().then_some(true).ok_or(error))
    }

    /// Whether the event was recorded in this stream: then everything that is enqueued there from
    /// now on runs after it.
    pub fn is_in(&self, stream: &Arc<CudaStream>) -> bool {
        // The `Weak` keeps the object's address from being reused. A stream of another library gets
        // a new object in each call.
        let is_it = |id| stream_id(stream).is_ok_and(|other| other == Some(id));
        std::ptr::eq(self.stream.as_ptr(), Arc::as_ptr(stream)) || self.id.is_some_and(is_it)
    }

    /// Whether this event is certain to come after `other`: both are of the same pool and stream,
    /// and this one was recorded later.
    pub fn follows(&self, other: &Self) -> bool {
        self.stream.ptr_eq(&other.stream)
            && Arc::ptr_eq(&self.pool, &other.pool)
            && self.place > other.place
    }

    /// Whether both are of the same pool and of streams with the same handle, and this event was
    /// recorded later. It then comes after `other`, unless the stream of `other` was destroyed with
    /// work in it, and the driver has given its handle to a new stream.
    pub fn succeeds(&self, other: &Self) -> bool {
        self.handle == other.handle
            && Arc::ptr_eq(&self.pool, &other.pool)
            && self.place > other.place
    }

    /// Makes a stream wait for the event.
    ///
    /// # Errors
    /// The driver fails; the stream then does not wait.
    pub fn hold_back(&self, stream: &CudaStream) -> Result<(), Error> {
        // SAFETY: `self` owns the event, so it has not been destroyed. The stream is borrowed, so
        // it exists.
        unsafe { wait_for(stream, self.event.0) }
    }
}

impl Drop for RecordedEvent {
    fn drop(&mut self) {
        // SAFETY: only this line takes the event, and `drop` runs once.
        let event = unsafe { ManuallyDrop::take(&mut self.event) };
        // Streams that wait for the event wait for the record that was there when their wait was
        // enqueued, so the event can be recorded again.
        let idle = &self.pool.idle;
        idle.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(event);
    }
}

#[cfg(test)]
mod tests {
    use spark_ccl_testing::{Need, has};

    use super::*;

    #[test]
    fn events_are_created_before_they_are_needed() {
        if !has(Need::Gpus(1)) {
            return;
        }
        let context = crate::context(0).unwrap();
        let stream = context.new_stream().unwrap();
        let pool = EventPool::new(context);
        let idle = || pool.idle.lock().unwrap().len();
        let mut recorded = Vec::new();
        for count in 1..=TOGETHER {
            recorded.push(pool.record(&stream).unwrap());
            assert_eq!(idle(), TOGETHER - count);
        }
        recorded.push(pool.record(&stream).unwrap());
        assert_eq!(idle(), TOGETHER - 1);
        drop(recorded);
        assert_eq!(idle(), 2 * TOGETHER);
    }
}
