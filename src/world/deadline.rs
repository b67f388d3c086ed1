//! Deadlines from timeouts, however long these are.

use std::time::{Duration, Instant};

/// The deadline of something that begins now and may take `timeout`.
pub(crate) fn deadline_in(timeout: Duration) -> Instant {
    deadline_after(Instant::now(), timeout)
}

/// The deadline of something that began at `since` and may take `timeout`.
pub(crate) fn deadline_after(since: Instant, timeout: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    since + timeout.min(YEAR)
}
