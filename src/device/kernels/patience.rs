//! How long kernels wait for the other ranks. They know nothing of the times of single calls.

use std::time::Duration;

/// How long kernels wait, and the host for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// As long as any call may take that is under way, or comes next.
    Longest(Duration),
    /// As long as the call may take that runs: this time is over.
    Over(Duration),
}

impl Patience {
    /// How long a wait may last.
    pub(super) fn limit(self) -> Duration {
        let (Self::Longest(limit) | Self::Over(limit)) = self;
        limit
    }
}
