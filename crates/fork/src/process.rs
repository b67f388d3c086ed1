//! Tells a process apart from the children that it forks.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::{descriptors, ranges};

/// Counts the forks between the first process of this program and this one.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// A process, told apart from the children that it forks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    generation: u64,
    id: u32,
}

/// The error of a forked child that uses what it inherited.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it belongs to process {owner}, of which this one, {here}, is a forked child")]
pub struct Forked {
    /// The process that it belongs to.
    pub owner: u32,
    /// This process.
    pub here: u32,
}

impl Process {
    /// This process.
    pub fn here() -> Self {
        static IS_HANDLED: AtomicBool = AtomicBool::new(false);
        // Pairs with the store below: the handler is registered before any fork that follows.
        if !IS_HANDLED.load(Ordering::Acquire) {
            // Threads do not wait for each other here: a child does not have the thread that it
            // would wait for. Several threads may therefore register the handler. Counting one fork
            // more than once does no harm.
            //
            // SAFETY: the handler is async-signal-safe and does not unwind.
            // Registration fails only for lack of memory; then children are not recognised.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
            // Pairs with the load above.
            IS_HANDLED.store(true, Ordering::Release);
        }
        Self {
            generation: generation(),
            id: std::process::id(),
        }
    }

    /// Whether this is the current process. False in a forked child.
    #[inline]
    pub fn is_here(self) -> bool {
        self.generation == generation()
    }

    /// Returns an error in a forked child.
    ///
    /// # Errors
    /// [`Forked`] names both processes.
    #[inline]
    pub fn check(self) -> Result<(), Forked> {
        if self.is_here() {
            return Ok(());
        }
        Err(self.forked())
    }

    #[cold]
    fn forked(self) -> Forked {
        Forked {
            owner: self.id,
            here: std::process::id(),
        }
    }
}

#[inline]
fn generation() -> u64 {
    // Pairs with nothing: it only changes in a new child, by the child's only thread.
    GENERATION.load(Ordering::Relaxed)
}

/// The child's only thread runs this before `fork` returns.
extern "C" fn in_child() {
    // Pairs with nothing: this thread is the process's only one.
    GENERATION.fetch_add(1, Ordering::Relaxed);
    descriptors::leave_to_parent();
    ranges::leave_to_parent();
}
