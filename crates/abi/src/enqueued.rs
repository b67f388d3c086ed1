//! Calls on device memory that wait to be enqueued in their streams, alone or at the end of a
//! group.

use std::sync::Arc;

use spark_ccl::cuda::DeviceCall;
use spark_ccl::cuda::cudarc::driver::sys::CUstream;
use spark_ccl::{Communicator, UntypedCall};

use crate::comm::Comm;
use crate::failure::Failure;

/// A call for a stream. Its communicator stays until it is enqueued.
pub struct Enqueued {
    comm: Arc<dyn Comm>,
    call: UntypedCall,
    stream: CUstream,
}

impl Enqueued {
    /// A call for a stream.
    ///
    /// # Safety
    /// The stream is a default one, or lives until what this returns is dropped. The call's buffers
    /// are as [`enqueue_untyped`](Communicator::enqueue_untyped) demands until the call has run.
    pub unsafe fn new(comm: Arc<dyn Comm>, call: UntypedCall, stream: CUstream) -> Self {
        Self { comm, call, stream }
    }

    /// Enqueues calls that start together.
    ///
    /// # Errors
    /// Those of [`enqueue_untyped`](Communicator::enqueue_untyped).
    pub fn enqueue(calls: &[Self]) -> Result<(), Failure> {
        let calls: Vec<_> = calls
            .iter()
            .map(|own| DeviceCall {
                comm: own.comm.inner(),
                call: &own.call,
                stream: own.stream,
            })
            .collect();
        // SAFETY: each stream is a default one, or lives longer than the borrowed calls; the
        // buffers stay, and are in order, until the calls have run (contract of `new`).
        Ok(unsafe { Communicator::enqueue_untyped(&calls) }?)
    }
}
