//! A rank's part in the kernels' communicator, and its end.

use std::sync::Arc;
use std::time::Duration;

use spark_ccl_config::GpuLayout;
use spark_ccl_gpu::Kernel;
use spark_ccl_log::Mutex;

use super::attached::Attached;
use super::patience::Patience;
use super::transport::KernelTransport;
use crate::device::calls::Calls;
use crate::device::guarded::Guarded;
use crate::device::rank::DeviceRank;
use crate::device::waiting::CALL;
use crate::error::Error;
use crate::plan::measured::Measured;

/// One rank's collectives of device memory.
#[derive(Debug)]
pub(crate) struct KernelEngine {
    /// Nothing is enqueued without the lock of its state; the backend there is the member.
    pub(super) base: DeviceRank<Arc<Attached>>,
    /// The member again, for code that must not wait for that lock: its holder may wait for room in
    /// a stream until the kernels there are aborted. `None` once it was finalized.
    pub(super) member: Mutex<Option<Arc<Attached>>>,
    /// Which faster ways were not taken, and why.
    pub(super) passed_over: Vec<String>,
    pub(super) kernels: Kernels,
    /// How long the member was last told to wait.
    patience: Mutex<Option<Patience>>,
}

/// What decides which kernels are taken.
#[derive(Debug)]
pub(super) struct Kernels {
    /// `None` where none is chosen by measured times: GPUs of several models, or where the host
    /// carries the data.
    pub(super) layout: Option<GpuLayout>,
    pub(super) measured: Measured<Kernel>,
    /// Whether calls may be staged through the host.
    pub(super) may_stage: bool,
}

impl Guarded for KernelEngine {
    type Backend = Arc<Attached>;

    /// Kernels know who is late, and wait as long.
    const GRACE: Duration = Duration::from_secs(1);

    fn base(&self) -> &DeviceRank<Arc<Attached>> {
        &self.base
    }

    fn check(&self) -> Result<(), Error> {
        if self.base.watch.failed() {
            self.abort();
            return Err(self.base.gone());
        }
        self.reported()?;
        let state = self.base.state.try_lock();
        match state {
            Some(state) if state.backend.is_none() => Err(self.base.gone()),
            _ => Ok(()),
        }
    }

    fn progress(&self) -> u64 {
        self.member().map_or(0, |member| member.progress())
    }

    fn abort(&self) {
        if let Some(member) = self.member() {
            member.abort();
        }
        let state = self.base.state.try_lock_for(CALL);
        // Its end may take long, so the lock is not held meanwhile.
        drop(state.and_then(|mut state| state.backend.take()));
    }
}

impl KernelEngine {
    pub(super) fn new(
        base: DeviceRank<Arc<Attached>>,
        member: Arc<Attached>,
        passed_over: Vec<String>,
        kernels: Kernels,
    ) -> Self {
        Self {
            base,
            member: Mutex::new(Some(member)),
            passed_over,
            kernels,
            patience: Mutex::new(None),
        }
    }

    /// Has the member wait as long as the calls under way may take.
    pub(super) fn adapt_patience(&self) {
        let Some(state) = self.base.state.try_lock() else {
            // The guard comes back soon.
            return;
        };
        let overdue = state.calls.overdue().map(Patience::Over);
        let patience = overdue.unwrap_or(Patience::Longest(state.calls.patience()));
        let mut told = self.patience.lock();
        if *told != Some(patience)
            && let Some(member) = self.member()
        {
            member.set_patience(patience);
            *told = Some(patience);
        }
    }

    /// Has the member wait as long as a call may take that is about to be launched: where its
    /// stream is full, its thread has the state for long, which the guard needs.
    pub(super) fn allow(&self, member: &KernelTransport, calls: &Calls, limit: Option<Duration>) {
        let longest = calls.patience().max(limit.unwrap_or_default());
        let mut told = self.patience.lock();
        if !matches!(*told, Some(Patience::Longest(told)) if told >= longest) {
            let patience = Patience::Longest(longest);
            member.set_patience(patience);
            *told = Some(patience);
        }
    }

    /// The kernels by the times that were measured.
    pub(super) fn measured(&self) -> &Measured<Kernel> {
        &self.kernels.measured
    }

    /// Whether calls may be staged through the host.
    pub(super) fn may_stage(&self) -> bool {
        self.kernels.may_stage
    }

    /// The member, unless it was finalized.
    pub(super) fn member(&self) -> Option<Arc<Attached>> {
        self.member.lock().clone()
    }

    /// What the guard looks at.
    pub(super) fn look(&self) {
        // An error has become a fault by then, and the next look aborts.
        if self.reported().is_ok() {
            self.base.look(Self::GRACE, self.progress());
            self.adapt_patience();
        }
    }
}
