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
use crate::device::rank::DeviceRank;
use crate::device::waiting::CALL;
use crate::device::watched_engine::WatchedEngine;
use crate::error::Error;
use crate::plan::measured::Measured;

/// One rank's collectives of device memory.
#[derive(Debug)]
pub(crate) struct KernelEngine {
    /// Nothing is enqueued without the lock of its state, whose `backend` is the member.
    pub(super) base: DeviceRank<Arc<Attached>>,
    /// The member again, for code that must not wait for the lock of the state. The thread that
    /// holds that lock may wait for room in a stream until the kernels there are aborted. `None`
    /// once the engine was finalized.
    pub(super) member: Mutex<Option<Arc<Attached>>>,
    /// Why faster transports were not taken.
    pub(super) passed_over: Vec<String>,
    pub(super) kernels: KernelChoice,
    /// How long the member was last told to wait.
    patience: Mutex<Option<Patience>>,
}

/// Decides which kernels are taken.
#[derive(Debug)]
pub(super) struct KernelChoice {
    /// `None` where measured times choose nothing: with GPUs of several models, or where the host
    /// carries the data.
    pub(super) layout: Option<GpuLayout>,
    pub(super) measured: Measured<Kernel>,
    /// Whether calls may be staged through the host.
    pub(super) may_stage: bool,
}

impl WatchedEngine for KernelEngine {
    type Backend = Arc<Attached>;

    /// Kernels know which rank is late, and report it after the call's own time limit.
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
        // The member's end may take long, so the lock is not held meanwhile.
        drop(state.and_then(|mut state| state.backend.take()));
    }
}

impl KernelEngine {
    pub(super) fn new(
        base: DeviceRank<Arc<Attached>>,
        member: Arc<Attached>,
        passed_over: Vec<String>,
        kernels: KernelChoice,
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
            // The guard calls this again soon.
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

    /// Has the member wait as long as the call that is about to be launched may take. The guard
    /// could not do this: it needs the state, which the launching thread holds for long if its
    /// stream is full.
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

    /// Adapts the member's patience, and aborts after a fault. The guard calls this again and
    /// again.
    pub(super) fn look(&self) {
        // `reported` has made the error a fault, for which the next look aborts.
        if self.reported().is_ok() {
            self.base.look(Self::GRACE, self.progress());
            self.adapt_patience();
        }
    }
}
