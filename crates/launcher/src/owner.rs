//! Restricts each protocol with the launcher to one process: forked children must not use it.

use once_cell::race::OnceBox;
use spark_ccl_fork::{Forked, Process};

/// The process that may use one of the launcher's protocols: the first one that does.
pub(crate) struct ProtocolOwner(OnceBox<Process>);

impl ProtocolOwner {
    pub(crate) const fn new() -> Self {
        Self(OnceBox::new())
    }

    /// Fails in a forked child of that process: the child would read its parent's answers, and is no rank to the
    /// launcher. Call this before taking the connection's mutex, which may stay locked for good in the child.
    pub(crate) fn check(&self) -> Result<(), Forked> {
        self.0.get_or_init(|| Box::new(Process::here())).check()
    }
}
