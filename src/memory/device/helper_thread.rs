//! Threads for calls into NCCL or CUDA that may take long.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use spark_ccl_fork::PerProcess;
use spark_ccl_log::{Condvar, Mutex};

use crate::error::Error;

/// Starts a thread that calls NCCL or CUDA. An exiting process waits for it for a while: at exit
/// both are taken down, and a call that is still running would crash.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    static IS_AWAITED: AtomicBool = AtomicBool::new(false);
    // Pairs with nothing: if it is set, some thread has registered the function before. No thread
    // waits for another to register it, since a forked child might lack that one. Registering it
    // twice does no harm.
    if !IS_AWAITED.load(Ordering::Relaxed) {
        // SAFETY: `wait_for_all` has the type that `atexit` takes. It uses only a static, whose
        // lock threads hold no longer than to count, so it may be called at any time, and it does
        // not unwind.
        unsafe { libc::atexit(wait_for_all) };
        // Pairs with nothing, like the load: the flag orders no other memory.
        IS_AWAITED.store(true, Ordering::Relaxed);
    }
    let entered = Entered::new();
    let started = spark_ccl_log::spawn(name, move || {
        work();
        drop(entered);
    });
    started.map(drop).map_err(|error| Error::System {
        what: "starting a thread for NCCL or CUDA".to_owned(),
        problem: error.to_string(),
    })
}

/// The number of threads that are in NCCL or CUDA.
static INSIDE: PerProcess<(Mutex<usize>, Condvar)> = PerProcess::new();

/// A thread that is in NCCL or CUDA.
struct Entered;

impl Entered {
    fn new() -> Self {
        *INSIDE.get().0.lock() += 1;
        Self
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        *INSIDE.get().0.lock() -= 1;
        INSIDE.get().1.notify_all();
    }
}

extern "C" fn wait_for_all() {
    const PATIENCE: Duration = Duration::from_secs(3);
    // A forked child has none of the threads, and does not wait for them.
    let (inside, left) = INSIDE.get();
    // Threads that wait for something that never comes are left behind.
    drop(left.wait_while_for(inside.lock(), |inside| *inside > 0, PATIENCE));
}
