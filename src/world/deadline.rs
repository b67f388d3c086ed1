//! Deadlines from timeouts, however long these are.

use std::time::{Duration, Instant};

/// When something that may take `timeout` has to be over.
pub(crate) fn deadline_in(timeout: Duration) -> Instant {
    deadline_after(Instant::now(), timeout)
}

/// When something that began then, and may take `timeout`, has to be over.
pub(crate) fn deadline_after(since: Instant, timeout: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    since + timeout.min(YEAR)
}
