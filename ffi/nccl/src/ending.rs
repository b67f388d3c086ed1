//! Ends of the fallback's communicators: the end of the process waits for those under way, as it
//! takes down what they use. Knows no communicator.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use spark_ccl_fork::{PerProcess, Process};

/// How long the end of the process waits.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// How many ends are under way. A forked child has none of its parent's threads.
static UNDER_WAY: PerProcess<AtomicUsize> = PerProcess::new();

/// An end under way, until this is dropped.
pub(crate) struct Ending(Process);

impl Ending {
    pub(crate) fn begin() -> Self {
        // Pairs with nothing: an end that begins as the process ends may be missed.
        UNDER_WAY.get().fetch_add(1, Ordering::Relaxed);
        Self(Process::here())
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        // A child that was forked meanwhile has not counted it.
        if self.0.is_here() {
            // Pairs with the load in `await_all`: what the thread did is done before.
            UNDER_WAY.get().fetch_sub(1, Ordering::Release);
        }
    }
}

/// Has the end of the process wait, before anything that was set up before this call is taken down.
/// May be called again, once more is set up.
pub(crate) fn await_at_exit() {
    // SAFETY: the function has the signature that atexit expects, may be called at any time, and
    // does not unwind. This library is never unloaded.
    unsafe { libc::atexit(await_all) };
}

extern "C" fn await_all() {
    let deadline = Instant::now() + PATIENCE;
    // Pairs with the subtraction in `drop`.
    while UNDER_WAY.get().load(Ordering::Acquire) > 0 && Instant::now() < deadline {
        std::thread::sleep(LOOK_EVERY);
    }
}
