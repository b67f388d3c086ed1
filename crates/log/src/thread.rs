//! The library's own threads, which a program's subscriber must not hold up.

use std::cell::Cell;
use std::io;
use std::thread::{Builder, JoinHandle};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Program,
    Own,
    /// Empties the queue.
    Writer,
}

thread_local! {
    static KIND: Cell<Kind> = const { Cell::new(Kind::Program) };
}

/// Starts a thread of the library. Its events are emitted by the queue's thread.
///
/// # Errors
/// The system's, if it refuses the thread.
pub fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.to_owned()).spawn(move || {
        become_own();
        work()
    })
}

/// Makes this thread, which something else has started, one of the library's.
pub fn become_own() {
    KIND.set(Kind::Own);
}

pub(crate) fn become_writer() {
    KIND.set(Kind::Writer);
}

pub(crate) fn is_own() -> bool {
    KIND.get() != Kind::Program
}

pub(crate) fn is_writer() -> bool {
    KIND.get() == Kind::Writer
}
