//! Log events that hold up no thread but the one that logs them, and the locks that this needs.
//!
//! An event goes to the subscriber of `tracing`, which may be the program's: it may block for ever,
//! or call the library. So the library says nothing under a lock, and nothing from its own threads:
//!
//! - While a thread holds a [`Mutex`] or [`RwLock`] of this crate, or a [`Held`], its events wait.
//!   It emits them itself when it has released the last of these.
//! - Events of threads that [`spawn`] has started are emitted by another thread, from a bounded
//!   queue.
//! - [`Lines`] and [`tell`] write by way of the same queue, so a full pipe holds up only that
//!   thread.
//!
//! Lines and events that the queue has no room for are dropped and counted; the next line written
//! says how many. [`flush`] waits for the queue at most [`PATIENCE`], as the process's exit does. A
//! forked child has a queue and a thread of its own.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod event;
mod job;
mod lines;
mod locks;
mod queue;
mod thread;

pub use event::{Held, abort, say, wants};
pub use lines::{Lines, remark, tell};
pub use locks::{Condvar, Guard, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use queue::{FlushOnDrop, PATIENCE, flush};
pub use thread::{become_own, spawn};
#[doc(hidden)]
pub use tracing;

/// An event that makes a feature unusable or ends the process.
#[macro_export]
macro_rules! error {
    ($($text:tt)+) => { $crate::event!(ERROR, $($text)+) };
}

/// An event that the program's owner should know of.
#[macro_export]
macro_rules! warn {
    ($($text:tt)+) => { $crate::event!(WARN, $($text)+) };
}

/// A decision, with its reason.
#[macro_export]
macro_rules! info {
    ($($text:tt)+) => { $crate::event!(INFO, $($text)+) };
}

/// An event that helps to find a fault.
#[macro_export]
macro_rules! debug {
    ($($text:tt)+) => { $crate::event!(DEBUG, $($text)+) };
}

/// An event of a level, whose text is that of `format!`. Its target, file and line are the
/// caller's.
#[doc(hidden)]
#[macro_export]
macro_rules! event {
    ($level:ident, $($text:tt)+) => {
        if $crate::wants($crate::tracing::Level::$level) {
            $crate::say(::std::format!($($text)+), |text: &str| {
                $crate::tracing::event!($crate::tracing::Level::$level, "{text}");
            });
        }
    };
}
