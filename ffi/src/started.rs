//! A call under way, which its request or its group waits for.

use crate::comm::Comm;
use crate::status::Failure;
use parking_lot::Mutex;
use spark_ccl::{Pending, UntypedCall};
use std::sync::Arc;

/// A call under way. Its communicator stays until it is done.
pub(crate) struct Started {
    /// `None` once somebody waits for it.
    pending: Mutex<Option<Pending<()>>>,
    _comm: Arc<Comm>,
}

impl Started {
    /// Starts a call.
    ///
    /// # Safety
    /// The call's buffers are as [`start_untyped`](spark_ccl::Communicator::start_untyped) demands.
    pub(crate) unsafe fn start(comm: &Arc<Comm>, call: &UntypedCall) -> Result<Self, Failure> {
        // SAFETY: this function's contract.
        let pending = unsafe { comm.inner.start_untyped(call) }?;
        Ok(Self {
            pending: Mutex::new(Some(pending)),
            _comm: Arc::clone(comm),
        })
    }

    /// Whether it is done. Makes progress.
    pub(crate) fn test(&self) -> bool {
        // Who waits in another thread has taken it.
        self.pending.lock().as_ref().is_some_and(Pending::test)
    }

    /// Waits for it.
    pub(crate) fn wait(&self) -> Result<(), Failure> {
        let pending = self.pending.lock().take();
        match pending.map(Pending::wait) {
            Some(Err(failed)) => Err(failed.error.into()),
            Some(Ok(())) => Ok(()),
            None => Err(Failure::invalid(
                "another thread waits for this request".to_owned(),
            )),
        }
    }
}
