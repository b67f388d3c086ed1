//! The time limit of a communicator's calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The time limit of a nonblocking communicator's calls. Any thread may change it, even while
/// another thread waits: that call keeps its time, but zero ends its wait at once.
///
/// ```no_run
/// # fn stop(comm: spark_ccl_nccl::Communicator) -> Result<(), spark_ccl_nccl::Error> {
/// let call_timeout = comm.call_timeout();
/// let caller = std::thread::spawn(move || comm.split(Some(0), 0, None));
/// // A rank is known to have failed.
/// call_timeout.set(std::time::Duration::ZERO);
/// # drop(caller);
/// # Ok(())
/// # }
/// ```
// In nanoseconds. Relaxed: only the value itself matters.
#[derive(Clone, Debug)]
pub struct CallTimeout(Arc<AtomicU64>);

impl CallTimeout {
    pub(super) fn new(timeout: Duration) -> Self {
        let call_timeout = Self(Arc::default());
        call_timeout.set(timeout);
        call_timeout
    }

    /// Sets the time limit of calls that begin from now on; zero is also that of calls under way.
    pub fn set(&self, timeout: Duration) {
        let nanos = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        self.0.store(nanos, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    /// Whether the time is over of a call that began at `start` with the time limit `own`.
    pub(super) fn is_over(&self, start: Instant, own: Duration) -> bool {
        self.get().is_zero() || start.elapsed() >= own
    }
}
