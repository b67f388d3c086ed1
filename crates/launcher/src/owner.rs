//! Restricts each protocol with the launcher to one process, since forked children must not use it,
//! and to one thread at a time.

use std::time::Instant;

use once_cell::race::OnceBox;
use spark_ccl_fork::{Forked, Process};
use spark_ccl_log::{Mutex, MutexGuard};

use crate::Error;

/// The process that may use one of the launcher's protocols: the first one to use it.
pub(crate) struct ProtocolOwner(OnceBox<Process>);

impl ProtocolOwner {
    pub(crate) const fn new() -> Self {
        Self(OnceBox::new())
    }

    /// Fails in a forked child of that process: the child would read its parent's answers, and is
    /// no rank to the launcher. Call this before locking the connection's mutex, which may stay
    /// locked for good in the child.
    pub(crate) fn check(&self) -> Result<(), Forked> {
        self.0.get_or_init(|| Box::new(Process::here())).check()
    }
}

/// Locks the connection to `space`, once no other thread is in an exchange over it.
pub(crate) fn lock<'a, T>(
    connection: &'a Mutex<T>,
    space: &str,
    deadline: Instant,
) -> Result<MutexGuard<'a, T>, Error> {
    let begin = Instant::now();
    connection
        .try_lock_until(deadline)
        .ok_or_else(|| Error::Timeout {
            space: space.to_owned(),
            operation: "begin".to_owned(),
            waited: begin.elapsed(),
            reason: "another thread of this process uses the space; is the launcher stuck?"
                .to_owned(),
        })
}
