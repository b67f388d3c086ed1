//! Who speaks to the launcher.

use once_cell::race::OnceBox;
use spark_ccl_fork::{Forked, Process};

/// The process that speaks to the launcher in one of its ways: the first one that does.
pub(crate) struct Speaker(OnceBox<Process>);

impl Speaker {
    pub(crate) const fn new() -> Self {
        Self(OnceBox::new())
    }

    /// An error in a forked child of that process: it would take its parent's answers, and to the launcher it is
    /// nobody. It is to ask this first, since a thread of its parent's may hold the lock of the connection for good.
    pub(crate) fn check(&self) -> Result<(), Forked> {
        self.0.get_or_init(|| Box::new(Process::here())).check()
    }
}
