//! Disconnects from the launcher when the process exits.
//!
//! If a process opened the launcher's key-value space and exits without finalizing it, launchers
//! treat that as a crash and kill the other ranks. A second communicator may need the space again,
//! so the process's normal exit is the only right moment to finalize.

use spark_ccl_fork::PerProcess;
use spark_ccl_log::Mutex;

type Finalizer = fn();

/// The functions to call at exit, per process: a forked child inherits the exit handler, but must
/// not finalize for this rank.
static FINALIZERS: PerProcess<Mutex<Vec<Finalizer>>> = PerProcess::new();

/// Calls `finalizer` when this process exits normally. It must return even if the launcher is gone.
pub(crate) fn register(finalizer: Finalizer) {
    let mut finalizers = FINALIZERS.get().lock();
    if finalizers.is_empty() {
        // SAFETY: `run_all` is a function with the signature and ABI that atexit expects. It is
        // loaded when it runs: glibc runs a library's handlers before it unloads the library. A
        // panic in it aborts instead of unwinding.
        let refused = unsafe { libc::atexit(run_all) } != 0;
        if refused {
            spark_ccl_log::warn!("the launcher may report this process as crashed: atexit failed");
            return;
        }
    }
    finalizers.push(finalizer);
}

extern "C" fn run_all() {
    // Another thread may hold the lock during the exit, and must not delay it.
    let Some(mut finalizers) = FINALIZERS.get().try_lock() else {
        return;
    };
    // Taken, so that each runs once: a forked child that registers, too, has its parent's handler
    // besides its own.
    for finalizer in std::mem::take(&mut *finalizers) {
        finalizer();
    }
}
