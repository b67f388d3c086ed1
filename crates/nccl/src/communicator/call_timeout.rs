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
#[derive(Clone, Debug)]
pub struct CallTimeout(Arc<Limits>);

// In nanoseconds. Relaxed: only the values themselves matter.
#[derive(Debug, Default)]
struct Limits {
    of_all: AtomicU64,
    at_least: AtomicU64,
}

impl CallTimeout {
    pub(super) fn new(timeout: Duration) -> Self {
        let call_timeout = Self(Arc::default());
        call_timeout.set(timeout);
        call_timeout
    }

    /// Sets the time limit of calls that begin from now on. Zero also applies to calls in progress.
    pub fn set(&self, timeout: Duration) {
        self.0.of_all.store(nanoseconds(timeout), Ordering::Relaxed);
    }

    /// Lets calls that begin from now on take this long even if the time limit is shorter, unless
    /// that is zero.
    pub fn allow(&self, at_least: Duration) {
        let nanos = nanoseconds(at_least);
        self.0.at_least.store(nanos, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> Duration {
        let Limits { of_all, at_least } = &*self.0;
        let longest = of_all.load(Ordering::Relaxed);
        Duration::from_nanos(longest.max(at_least.load(Ordering::Relaxed)))
    }

    /// Whether a call has exceeded its time: it began at `start` with the time limit `own`.
    pub(super) fn is_over(&self, start: Instant, own: Duration) -> bool {
        self.0.of_all.load(Ordering::Relaxed) == 0 || start.elapsed() >= own
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_the_longer_time_until_zero_ends_all() {
        let [short, long] = [1, 1000].map(Duration::from_secs);
        let call_timeout = CallTimeout::new(short);
        call_timeout.allow(long);
        assert_eq!(call_timeout.get(), long);
        let start = Instant::now();
        assert!(!call_timeout.is_over(start, long));
        call_timeout.set(Duration::ZERO);
        assert!(call_timeout.is_over(start, long));
        call_timeout.set(short);
        call_timeout.allow(Duration::ZERO);
        assert_eq!(call_timeout.get(), short);
    }
}
