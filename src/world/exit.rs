//! The end of a process that has dropped nothing: what it holds leaves all the same, so that the
//! other ranks do not take it for dead. Knows the parts of a rank that leave only by the trait
//! `Leaves`.
//!
//! Calls afterwards, in destructors of statics or handlers that were registered earlier, fail at
//! once: programs communicate before they exit.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use spark_ccl_fork::{PerProcess, within};
use spark_ccl_log::{Mutex, become_own};

/// The time that operations in flight have to end.
const IN_FLIGHT: Duration = Duration::from_secs(1);
/// How long the exit waits in total. A thread that has called `exit` may hold a lock, if a signal's
/// handler did.
const PATIENCE: Duration = Duration::from_secs(3);

/// A part of a rank that leaves when the process exits.
pub(crate) trait Leaves: Send + Sync {
    /// Leaves. Operations in flight have until `deadline`.
    fn leave_at_exit(&self, deadline: Instant);
}

/// The parts of this process's ranks that leave when it exits. A forked child has none of its
/// parent's.
static ALL: PerProcess<Mutex<Vec<Weak<dyn Leaves>>>> = PerProcess::new();

/// Adds a part that is to leave when the process exits, before those that were added earlier.
pub(crate) fn add<L: Leaves + 'static>(leaves: &Arc<L>) {
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    register(&IS_REGISTERED);
    let leaves: Weak<dyn Leaves> = Arc::<L>::downgrade(leaves);
    let mut all = ALL.get().lock();
    all.retain(|one| one.strong_count() > 0);
    all.push(leaves);
}

/// Has all leave at exit before anything that was set up before this call is taken down. Once for
/// each flag.
pub(crate) fn register(is_registered: &AtomicBool) {
    // Pairs with nothing: it only decides who registers the handler, and twice does no harm.
    if !is_registered.swap(true, Ordering::Relaxed) {
        // SAFETY: the function has the signature that atexit expects, may be called at any time,
        // and does not unwind. glibc runs a library's handlers before it unloads the library.
        unsafe { libc::atexit(leave) };
    }
}

extern "C" fn leave() {
    let all = ALL.get();
    // If another thread holds the lock, some may be there.
    if all.try_lock().is_some_and(|all| all.is_empty()) {
        return;
    }
    // The other ranks notice by themselves if this takes longer, or cannot be begun.
    let _in_time = within(Instant::now() + PATIENCE, || {
        become_own();
        let deadline = Instant::now() + IN_FLIGHT;
        let all = std::mem::take(&mut *ALL.get().lock());
        for leaves in all.iter().rev().filter_map(Weak::upgrade) {
            leaves.leave_at_exit(deadline);
        }
    });
}
