//! Descriptors that forked children do not keep.

use std::fmt;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use crate::Process;
use crate::descriptors::{Entry, enlist, make_dead_end};

/// The owner of a descriptor that children of `fork` do not keep open. Dropping it ends the
/// connection.
///
/// A child that another thread forks after the descriptor was opened and before [`new`](Self::new)
/// returns may keep a copy, which holds the connection open until the child ends. So call `new`
/// right after the descriptor was opened, and before anyone at the other end depends on it. No
/// other moment matters.
pub struct Unshared<T: AsFd> {
    value: T,
    entry: &'static Entry,
    process: Process,
}

impl<T: AsFd> Unshared<T> {
    /// From now on, children do not inherit the descriptor.
    pub fn new(value: T) -> Self {
        let process = Process::here();
        make_dead_end();
        let entry = enlist(value.as_fd().as_raw_fd());
        Self {
            value,
            entry,
            process,
        }
    }
}

impl<T: AsFd> Deref for Unshared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: AsFd> AsFd for Unshared<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.value.as_fd()
    }
}

impl<T: AsFd> Drop for Unshared<T> {
    /// Ends the connection, for children that are forked meanwhile, too. Runs before `value` is
    /// dropped, which closes the descriptor: its number may be reused from then on.
    fn drop(&mut self) {
        if self.process.is_here() {
            self.entry.free();
        }
    }
}

impl<T: AsFd + fmt::Debug> fmt::Debug for Unshared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}
