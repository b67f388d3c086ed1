//! Saying goodbye to the launcher when the process exits.
//!
//! Launchers take a process that opened its key-value space and ends without a goodbye for a crash,
//! and kill the other ranks. A second communicator may need the space again, so that the only right
//! moment is the process's normal end.

use parking_lot::Mutex;

/// What to do at exit, and the process that asked for it.
struct Goodbye {
    process: u32,
    say: fn(),
}

static GOODBYES: Mutex<Vec<Goodbye>> = Mutex::new(Vec::new());

/// Calls `say` when this process exits normally; `say` must return even when the launcher is gone.
pub(crate) fn register(say: fn()) {
    let mut goodbyes = GOODBYES.lock();
    if goodbyes.is_empty() {
        // SAFETY: `run_all` is a function of this program or library with the ABI that atexit
        // expects; it takes no arguments and does not unwind.
        let refused = unsafe { libc::atexit(run_all) } != 0;
        if refused {
            tracing::warn!("the launcher may report this process as crashed: atexit failed");
            return;
        }
    }
    goodbyes.push(Goodbye {
        process: std::process::id(),
        say,
    });
}

extern "C" fn run_all() {
    // A thread that holds the lock while the process exits must not hold up the exit.
    let Some(goodbyes) = GOODBYES.try_lock() else {
        return;
    };
    for goodbye in goodbyes.iter() {
        // A forked child inherits the handler, but not the right to speak for this rank.
        if goodbye.process == std::process::id() {
            (goodbye.say)();
        }
    }
}
