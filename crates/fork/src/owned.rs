//! What only its own process takes down.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

use crate::Process;

/// A value that is dropped by the process that made it, and by no child: there, dropping this does nothing.
pub struct Owned<T> {
    process: Process,
    value: ManuallyDrop<T>,
}

impl<T> Owned<T> {
    /// A value of this process.
    pub fn new(value: T) -> Self {
        Self {
            process: Process::here(),
            value: ManuallyDrop::new(value),
        }
    }

    /// The value, in its own process.
    pub fn into_inner(self) -> Option<T> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: this value is neither dropped nor used after this, so that nobody else takes what is in it.
        let value = unsafe { ManuallyDrop::take(&mut this.value) };
        if this.process.is_here() {
            return Some(value);
        }
        std::mem::forget(value);
        None
    }

    /// Whose it is.
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
            // SAFETY: this is the only place that drops the value, and nobody sees it after this.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Owned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}
