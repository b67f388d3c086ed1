//! Calls of NCCL's that wait for all ranks, and may never return: they run on a thread that may be left behind.

use crate::deadline::deadline_in;
use crate::error::Error;
use crossbeam::channel::{RecvTimeoutError, bounded};
use parking_lot::{Condvar, Mutex};
use spark_ccl_control::Watch;
use spark_ccl_fork::PerProcess;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often waiting for NCCL looks for faults.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Does something on a thread of its own, which is left behind when a rank fails meanwhile, or when it takes
/// longer than `timeout`: `hint` says what may be the matter then.
pub(super) fn on_helper_thread<R: Send + 'static>(
    what: &str,
    hint: &str,
    watch: &Watch,
    timeout: Duration,
    work: impl FnOnce() -> Result<R, Error> + Send + 'static,
) -> Result<R, Error> {
    let (sender, done) = bounded(1);
    spawn("spark-nccl-call", move || {
        // Fails if the caller has returned already because of a fault or the deadline.
        let _ = sender.send(work());
    })?;
    let deadline = deadline_in(timeout);
    loop {
        match done.recv_timeout(LOOK_EVERY) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::System {
                    what: format!("{what} by NCCL"),
                    problem: "the thread of the call panicked".to_owned(),
                });
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Some(fault) = watch.fault() {
            return Err(Error::Failed(fault));
        }
        if Instant::now() > deadline {
            return Err(Error::System {
                what: format!("{what} by NCCL"),
                problem: format!(
                    "not done after {timeout:.1?}; {hint}; NCCL_DEBUG=INFO tells more"
                ),
            });
        }
    }
}

/// Starts a thread that calls NCCL. An exiting process waits for it for a while: at exit NCCL and CUDA are taken down,
/// and a call that is still running would crash.
pub(super) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    static IS_AWAITED: AtomicBool = AtomicBool::new(false);
    // Pairs with nothing: if it is set, some thread has registered the function before. No thread waits for another to
    // register it, since a forked child might lack that one. Registering it twice does no harm.
    if !IS_AWAITED.load(Ordering::Relaxed) {
        // SAFETY: the function may be called at any time, and does not unwind.
        unsafe { libc::atexit(wait_for_all) };
        // Pairs with nothing, see the load.
        IS_AWAITED.store(true, Ordering::Relaxed);
    }
    let entered = Entered::new();
    let thread = std::thread::Builder::new().name(name.to_owned());
    let started = thread.spawn(move || {
        work();
        drop(entered);
    });
    started.map(drop).map_err(|error| Error::System {
        what: "starting a thread for NCCL".to_owned(),
        problem: error.to_string(),
    })
}

/// How many threads are in NCCL.
static INSIDE: PerProcess<(Mutex<usize>, Condvar)> = PerProcess::new();

/// A thread in NCCL.
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
    left.wait_while_for(&mut inside.lock(), |inside| *inside > 0, PATIENCE);
}
