//! Counts the calls of NCCL's that were begun and have not come back. Knows no engine.

use std::time::Duration;

use spark_ccl_log::Mutex;
use spark_ccl_nccl::CallTimeout;

/// The calls of NCCL's with a communicator.
pub(super) struct Inside {
    counts: Mutex<Counts>,
    /// That of calls which do not block.
    pub(super) call_timeout: CallTimeout,
}

/// How many calls were begun, and how many have returned.
#[derive(Clone, Copy, Default)]
struct Counts {
    begun: u64,
    ended: u64,
    /// The longest time that one of those under way has of its own.
    longest: Duration,
}

impl Inside {
    pub(super) fn new(call_timeout: CallTimeout) -> Self {
        Self {
            counts: Mutex::default(),
            call_timeout,
        }
    }

    /// A call is begun, which may take as long as `limit`, if it has a time of its own.
    pub(super) fn enter(&self, limit: Option<Duration>) {
        let mut counts = self.counts.lock();
        counts.begun += 1;
        let limit = limit.unwrap_or_default();
        if limit > counts.longest {
            counts.longest = limit;
            self.call_timeout.allow(limit);
        }
    }

    /// A call has come back.
    pub(super) fn leave(&self) {
        let mut counts = self.counts.lock();
        counts.ended += 1;
        if counts.ended == counts.begun && !counts.longest.is_zero() {
            counts.longest = Duration::ZERO;
            self.call_timeout.allow(Duration::ZERO);
        }
    }

    /// The number of the last call, if one is under way, and the longest time that one has of its
    /// own.
    pub(super) fn last(&self) -> Option<(u64, Duration)> {
        let counts = *self.counts.lock();
        (counts.begun != counts.ended).then_some((counts.begun, counts.longest))
    }
}
