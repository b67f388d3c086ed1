//! A rank's part in the kernels' communicator, and its end.

use super::joined::Joined;
use crate::device::guarded::Guarded;
use crate::device::rank::DeviceRank;
use crate::device::waiting::CALL;
use crate::error::Error;
use std::sync::Arc;
use std::time::Duration;

/// One rank's collectives of device memory.
#[derive(Debug)]
pub(crate) struct KernelEngine {
    /// Nothing is enqueued without the lock of its state; the backend there is the member.
    pub(super) base: DeviceRank<Arc<Joined>>,
    /// The same, for what needs no lock: a thread that has the lock may wait for room in a stream, until the kernels
    /// there are aborted.
    pub(super) member: Arc<Joined>,
}

impl Guarded for KernelEngine {
    type Backend = Arc<Joined>;

    /// Kernels know who is late, and wait as long.
    const GRACE: Duration = Duration::from_secs(1);

    fn base(&self) -> &DeviceRank<Arc<Joined>> {
        &self.base
    }

    fn check(&self) -> Result<(), Error> {
        if let Some(fault) = self.base.watch.fault() {
            self.abort();
            return Err(Error::Failed(fault));
        }
        self.reported()?;
        let state = self.base.state.try_lock();
        match state {
            Some(state) if state.backend.is_none() => Err(self.base.gone()),
            _ => Ok(()),
        }
    }

    fn abort(&self) -> bool {
        self.member.abort();
        let Some(mut state) = self.base.state.try_lock_for(CALL) else {
            return false;
        };
        state.backend = None;
        true
    }
}

impl KernelEngine {
    /// What the guard looks at.
    pub(super) fn look(&self) {
        // What is wrong is a fault by then, and the next look aborts.
        if self.reported().is_ok() {
            self.base.look(Self::GRACE);
        }
    }

    /// Ends, once everything that was enqueued has run on all ranks.
    pub(super) fn end_together(&self) -> Result<(), Error> {
        let ended = self.base.lock()?.backend.take();
        ended.map(drop).ok_or_else(|| self.base.gone())
    }

    /// Leaves without [`end_together`](Self::end_together). Calls that do not end soon are aborted on all ranks.
    pub(super) fn end_alone(&self) {
        self.base.is_done();
        self.abort();
    }
}
