//! The trait by which waits, the guard and allocations use an engine for device memory.

use std::sync::Arc;
use std::time::Duration;

use spark_ccl_cuda::RecordedEvent;

use super::rank::DeviceRank;
use crate::error::Error;
use crate::memory::device::block;
use crate::task::Task;

/// An engine whose calls run later, and may have to be aborted.
pub(super) trait WatchedEngine: Send + Sync + 'static {
    /// NCCL's communicator, or the member that runs the kernels.
    type Backend: Send + 'static;

    /// How much longer than the timeout a call may take, so that the backend can report why.
    const GRACE: Duration = Duration::ZERO;

    /// The rank and its GPU.
    fn base(&self) -> &DeviceRank<Self::Backend>;

    /// The communicator's error, if it has failed, or the failure that the backend has noticed
    /// meanwhile.
    fn check(&self) -> Result<(), Error>;

    /// A number that changes with the progress of running calls, where the backend sees it. A
    /// call's time limit begins anew with each change.
    fn progress(&self) -> u64 {
        0
    }

    /// How many calls the ranks have to compare, since the backend does not compare them.
    fn calls_to_compare(&self) -> u64 {
        0
    }

    /// Begins to compare the calls up to this one.
    fn ask_of_calls(&self, _: u64) {}

    /// Waits until the calls up to this one, which have run, are compared with those of the other
    /// ranks.
    ///
    /// # Errors
    /// The fault of ranks that have made different calls, or do not answer.
    fn compare_calls(&self, _: u64) -> Result<(), Error> {
        Ok(())
    }

    /// Aborts what runs; afterwards nothing can be enqueued. If it cannot abort yet, the guard
    /// tries again.
    fn abort(&self);

    /// Whether the backend still holds on to dropped memory that it can give up now.
    fn has_leftovers(&self) -> bool {
        false
    }

    /// Whether there is dropped memory that can be freed at some time, without the other ranks.
    fn will_free(&self) -> bool {
        block::any()
    }

    /// Has the backend give up dropped memory that is no longer in use. May wait for kernels of any
    /// rank of the process.
    fn tidy(&self) {}

    /// Records an enqueued call with its end, and which calls have run. Captured calls are left
    /// out: how often their graphs are launched is not known.
    fn observe(
        &self,
        task: &Task,
        end: &Result<Option<Arc<RecordedEvent>>, spark_ccl_cuda::Error>,
    ) {
        if let (Some(notes), Ok(Some(end))) = (&self.base().notes, end) {
            notes.add(task, end);
            self.observe_ends();
        }
    }

    /// Notes for reports which calls have run.
    fn observe_ends(&self) {
        let Some(notes) = &self.base().notes else {
            return;
        };
        // The check comes second: an aborted call ends too, and the fault is known by then.
        if let Some(last) = notes.last_ended()
            && self.check().is_ok()
        {
            notes.have_run(last);
        }
    }
}
