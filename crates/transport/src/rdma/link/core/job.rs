//! Runs slow system calls on threads of their own.

use std::error::Error;
use std::io;
use std::thread::{Builder, JoinHandle};

/// Work that a thread does.
#[derive(Debug)]
pub(super) struct Job<T>(io::Result<JoinHandle<Result<T, String>>>);

impl<T: Send + 'static> Job<T> {
    pub(super) fn start(work: impl FnOnce() -> Result<T, Box<dyn Error>> + Send + 'static) -> Self {
        Self(thread().spawn(move || work().map_err(|error| error.to_string())))
    }

    pub(super) fn has_ended(&self) -> bool {
        self.0.as_ref().map_or(true, JoinHandle::is_finished)
    }

    /// The result. Call it only when the thread has ended; otherwise it blocks.
    pub(super) fn outcome(self) -> Result<T, String> {
        let thread = self.0.map_err(|error| format!("no thread: {error}"))?;
        let panicked = |_| Err("a thread that worked on it has panicked".to_owned());
        thread.join().unwrap_or_else(panicked)
    }
}

/// Drops on a thread what may take time to drop.
pub(super) fn discard(what: impl Send + 'static) {
    // Without a thread, the value is dropped here.
    let _ = thread().spawn(move || drop(what));
}

fn thread() -> Builder {
    Builder::new().name("spark-rail".to_owned())
}
