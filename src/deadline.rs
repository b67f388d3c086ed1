//! Deadlines from timeouts, however long these are.

use std::time::{Duration, Instant};

/// When something that may take `timeout` has to be over.
pub(crate) fn deadline_in(timeout: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    Instant::now() + timeout.min(YEAR)
}
