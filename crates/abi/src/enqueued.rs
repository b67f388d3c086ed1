//! Calls on device memory that are still to be enqueued in their streams, alone or at the end of a
//! group.

use std::sync::Arc;

use spark_ccl::cuda::DeviceCall;
use spark_ccl::cuda::cudarc::driver::sys::{CUevent, CUstream};
use spark_ccl::{Communicator, UntypedCall};

use crate::comm::{Comm, Planned};
use crate::failure::Failure;

/// A call for a stream. Its communicator stays until the call is enqueued.
pub struct Enqueued {
    comm: Arc<dyn Comm>,
    call: UntypedCall,
    stream: CUstream,
    event: CUevent,
}

impl Enqueued {
    /// A call for a stream, where `event` is recorded behind it unless it is null.
    ///
    /// # Safety
    /// The stream is a default one, or lives until the returned call is enqueued or dropped, and so
    /// does the event, which is of the communicator's device. The call's buffers are as
    /// [`enqueue_untyped`](Communicator::enqueue_untyped) demands until the call has run.
    pub unsafe fn new(
        comm: Arc<dyn Comm>,
        call: UntypedCall,
        stream: CUstream,
        event: CUevent,
    ) -> Self {
        Self {
            comm,
            call,
            stream,
            event,
        }
    }

    /// The call, which is not enqueued, and its communicator.
    pub(crate) fn into_call(self) -> Planned {
        (self.comm, self.call)
    }

    fn device_call(&self) -> DeviceCall<'_> {
        DeviceCall {
            comm: self.comm.inner(),
            call: &self.call,
            stream: self.stream,
        }
    }

    /// Enqueues calls that start together, and then records their events.
    ///
    /// # Errors
    /// Those of [`enqueue_untyped`](Communicator::enqueue_untyped).
    pub fn enqueue(calls: &[Self]) -> Result<(), Failure> {
        let enqueue = |calls: &[DeviceCall<'_>]| {
            // SAFETY: the caller of `new` keeps each stream, unless it is a default one, until this
            // has enqueued its call. That caller also keeps the buffers, and all other uses of them
            // away, until the calls have run.
            unsafe { Communicator::enqueue_untyped(calls) }
        };
        let enqueued = match calls {
            // Without an allocation.
            [alone] => enqueue(&[alone.device_call()]),
            _ => enqueue(&calls.iter().map(Self::device_call).collect::<Vec<_>>()),
        };
        enqueued.map_err(|error| explain(calls, error.into()))?;
        for own in calls.iter().filter(|own| !own.event.is_null()) {
            // SAFETY: the caller of `new` passed an event of the communicator's device, which has
            // one context in use. It lives until this has enqueued the call. The stream lives as
            // long, or is a default one.
            unsafe { own.comm.inner().record_raw(own.event, own.stream) }?;
        }
        Ok(())
    }
}

/// A failure of calls, in the words of their communicator if they have one in common.
fn explain(calls: &[Enqueued], failure: Failure) -> Failure {
    let mut comms = calls.iter().map(|own| &own.comm);
    match comms.next() {
        Some(first) if comms.all(|other| Arc::ptr_eq(first, other)) => first.explain(failure),
        _ => failure,
    }
}
