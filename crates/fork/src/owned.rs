//! Values that only the process that made them may drop.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

use crate::Process;

/// A value that only the process that made it drops. In a forked child, dropping this does nothing.
pub struct Owned<T> {
    process: Process,
    value: ManuallyDrop<T>,
}

impl<T> Owned<T> {
    /// A value owned by this process.
    pub fn new(value: T) -> Self {
        Self {
            process: Process::here(),
            value: ManuallyDrop::new(value),
        }
    }

    /// Takes the value out; `None` in a child, where the value is leaked.
    pub fn into_inner(self) -> Option<T> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is a `ManuallyDrop` that is neither dropped nor read as a value again, so
        // the value is taken only once.
        let value = unsafe { ManuallyDrop::take(&mut this.value) };
        if this.process.is_here() {
            return Some(value);
        }
        std::mem::forget(value);
        None
    }

    /// The process that made it.
    #[inline]
    pub fn process(&self) -> Process {
        self.process
    }
}

impl<T> Deref for Owned<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Owned<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.process.is_here() {
            // SAFETY: `drop` runs at most once, and `into_inner`, which also takes the value, keeps
            // it from running. Nothing can access the value afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Owned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}
