//! How long kernels wait for the other ranks. They know nothing of the times of single calls.

use std::time::Duration;

/// How long kernels wait, and how long the host waits for kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// As long as any call may take that is under way, or is the next one.
    Longest(Duration),
    /// The time limit of the call that runs; it has passed.
    Over(Duration),
}

impl Patience {
    /// How long a wait may last.
    pub(super) fn limit(self) -> Duration {
        let (Self::Longest(limit) | Self::Over(limit)) = self;
        limit
    }
}
