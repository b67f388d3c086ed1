//! Counts the NCCL calls that have begun and not come back. Knows no engine.

use std::time::Duration;

use spark_ccl_log::Mutex;
use spark_ccl_nccl::CallTimeout;

/// The NCCL calls of a communicator.
pub(super) struct Inside {
    counts: Mutex<Counts>,
    /// The time limit of calls that do not block.
    pub(super) call_timeout: CallTimeout,
}

/// How many calls were begun, and how many have returned.
#[derive(Clone, Copy, Default)]
struct Counts {
    begun: u64,
    ended: u64,
    /// The longest of the own time limits of the calls under way.
    longest: Duration,
}

impl Inside {
    pub(super) fn new(call_timeout: CallTimeout) -> Self {
        Self {
            counts: Mutex::default(),
            call_timeout,
        }
    }

    /// Notes that a call begins. `limit` is its own time limit, if it has one.
    pub(super) fn enter(&self, limit: Option<Duration>) {
        let mut counts = self.counts.lock();
        counts.begun += 1;
        let limit = limit.unwrap_or_default();
        if limit > counts.longest {
            counts.longest = limit;
            self.call_timeout.allow(limit);
        }
    }

    /// Notes that a call has come back.
    pub(super) fn leave(&self) {
        let mut counts = self.counts.lock();
        counts.ended += 1;
        if counts.ended == counts.begun && !counts.longest.is_zero() {
            counts.longest = Duration::ZERO;
            self.call_timeout.allow(Duration::ZERO);
        }
    }

    /// If a call is under way: the number of the last one, and the longest of their own time
    /// limits.
    pub(super) fn last(&self) -> Option<(u64, Duration)> {
        let counts = *self.counts.lock();
        (counts.begun != counts.ended).then_some((counts.begun, counts.longest))
    }
}
