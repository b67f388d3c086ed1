//! Saying goodbye to the launcher when the process exits.
//!
//! Launchers take a process that opened its key-value space and ends without a goodbye for a crash,
//! and kill the other ranks. A second communicator may need the space again, so that the only right
//! moment is the process's normal end.

use parking_lot::Mutex;
use spark_ccl_fork::PerProcess;

type Goodbye = fn();

/// What to do at exit. A forked child inherits the handler, but not the right to speak for this rank.
static GOODBYES: PerProcess<Mutex<Vec<Goodbye>>> = PerProcess::new();

/// Calls `say` when this process exits normally; `say` must return even when the launcher is gone.
pub(crate) fn register(say: Goodbye) {
    let mut goodbyes = GOODBYES.get().lock();
    if goodbyes.is_empty() {
        // SAFETY: `run_all` is a function of this program or library with the ABI that atexit
        // expects; it takes no arguments and does not unwind.
        let refused = unsafe { libc::atexit(run_all) } != 0;
        if refused {
            tracing::warn!("the launcher may report this process as crashed: atexit failed");
            return;
        }
    }
    goodbyes.push(say);
}

extern "C" fn run_all() {
    // A thread that holds the lock while the process exits must not hold up the exit.
    let Some(mut goodbyes) = GOODBYES.get().try_lock() else {
        return;
    };
    // Once: a child that also registers has its parent's handler besides its own.
    for say in std::mem::take(&mut *goodbyes) {
        say();
    }
}
