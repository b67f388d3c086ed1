//! Calls on device memory that wait to be enqueued in their streams, alone or at the end of a
//! group.

use std::sync::Arc;

use spark_ccl::cuda::DeviceCall;
use spark_ccl::cuda::cudarc::driver::sys::CUstream;
use spark_ccl::{Communicator, UntypedCall};

use crate::comm::Comm;
use crate::status::Failure;

/// A call for a stream. Its communicator stays until it is enqueued.
pub(crate) struct Enqueued {
    comm: Arc<Comm>,
    call: UntypedCall,
    stream: CUstream,
}

impl Enqueued {
    /// # Safety
    /// The stream is a default one, or lives until what this returns is dropped. The call's buffers
    /// are as [`enqueue_untyped`](Communicator::enqueue_untyped) demands until the call has run.
    pub(crate) unsafe fn new(comm: &Arc<Comm>, call: UntypedCall, stream: CUstream) -> Self {
        Self {
            comm: Arc::clone(comm),
            call,
            stream,
        }
    }

    /// Enqueues calls that start together.
    pub(crate) fn enqueue(calls: &[Self]) -> Result<(), Failure> {
        let calls: Vec<_> = calls
            .iter()
            .map(|own| DeviceCall {
                comm: &own.comm.inner,
                call: &own.call,
                stream: own.stream,
            })
            .collect();
        // SAFETY: each stream is a default one, or lives longer than the borrowed calls; the
        // buffers stay, and are in order, until the calls have run (contract of `new`).
        Ok(unsafe { Communicator::enqueue_untyped(&calls) }?)
    }
}
