//! Which process something belongs to.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::{descriptors, ranges};

/// Grows with each fork between the first process of this program and this one.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// A process, told apart from the children that it forks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    generation: u64,
    id: u32,
}

/// Something was used by a process that inherited it.
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
        // Pairs with the store below: a fork that comes after this finds the handler.
        if !IS_HANDLED.load(Ordering::Acquire) {
            // No thread waits for another one here, which a child would not have. So several may get here at a time;
            // to count one fork twice, or thrice, does no harm.
            // SAFETY: the handler does nothing but what a handler of signals may do, and does not unwind. It
            // fails only for want of memory, and then children are not recognised.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
            // Pairs with the load above.
            IS_HANDLED.store(true, Ordering::Release);
        }
        Self {
            generation: generation(),
            id: std::process::id(),
        }
    }

    /// Whether this process is it, not a child that was forked from it.
    #[inline]
    pub fn is_here(self) -> bool {
        self.generation == generation()
    }

    /// An error in a forked child.
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
    // Pairs with nothing: it changes in a child that has only the thread which changes it.
    GENERATION.load(Ordering::Relaxed)
}

/// The child's only thread runs this before `fork` returns.
extern "C" fn in_child() {
    // Pairs with nothing, as in `generation`.
    GENERATION.fetch_add(1, Ordering::Relaxed);
    descriptors::leave_to_parent();
    ranges::leave_to_parent();
}
