use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long calls of a communicator that does not block are waited for. Any thread may change it, also while
/// another one waits: with zero, that ends at once.
///
/// ```no_run
/// # fn stop(comm: spark_ccl_nccl::Communicator) -> Result<(), spark_ccl_nccl::Error> {
/// let patience = comm.patience();
/// let caller = std::thread::spawn(move || comm.split(Some(0), 0, None));
/// // A rank is known to be gone.
/// patience.set(std::time::Duration::ZERO);
/// # drop(caller);
/// # Ok(())
/// # }
/// ```
// In nanoseconds. It carries nothing but itself.
#[derive(Clone, Debug)]
pub struct Patience(Arc<AtomicU64>);

impl Patience {
    pub(super) fn new(timeout: Duration) -> Self {
        let patience = Self(Arc::default());
        patience.set(timeout);
        patience
    }

    /// Lets calls take so long from their beginning on.
    pub fn set(&self, timeout: Duration) {
        let nanos = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        self.0.store(nanos, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    /// Whether it is over for a call that began then.
    pub(super) fn is_over(&self, start: Instant) -> bool {
        start.elapsed() >= self.get()
    }
}
