//! Disconnects from the launcher when the process exits.
//!
//! If a process opened the launcher's key-value space and exits without finalizing it, launchers take that for a crash
//! and kill the other ranks. A second communicator may need the space again, so the process's normal exit is the only
//! right moment to finalize.

use parking_lot::Mutex;
use spark_ccl_fork::PerProcess;

type Goodbye = fn();

/// What to call at exit, per process: a forked child inherits the exit handler, but must not finalize for this rank.
static GOODBYES: PerProcess<Mutex<Vec<Goodbye>>> = PerProcess::new();

/// Calls `goodbye` when this process exits normally. It must return even if the launcher is gone.
pub(crate) fn register(goodbye: Goodbye) {
    let mut goodbyes = GOODBYES.get().lock();
    if goodbyes.is_empty() {
        // SAFETY: `run_all` is a function with the signature and ABI that atexit expects. It is loaded when it runs:
        // glibc runs a library's handlers before it unloads the library. A panic in it aborts instead of unwinding.
        let refused = unsafe { libc::atexit(run_all) } != 0;
        if refused {
            tracing::warn!("the launcher may report this process as crashed: atexit failed");
            return;
        }
    }
    goodbyes.push(goodbye);
}

extern "C" fn run_all() {
    // Another thread may hold the lock while the process exits. It must not delay the exit.
    let Some(mut goodbyes) = GOODBYES.get().try_lock() else {
        return;
    };
    // Taken, so that each runs once: a forked child that registers, too, has its parent's handler besides its own.
    for goodbye in std::mem::take(&mut *goodbyes) {
        goodbye();
    }
}
