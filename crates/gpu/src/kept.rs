//! Memory that kernels use until they have run.

use std::mem::ManuallyDrop;
use std::ops::Deref;

use crate::Error;

/// Parts of a rank that its kernels use. Dropping them ends the kernels' waits, and waits until
/// everything that was enqueued in the GPU's context has run, unless no kernel was launched since
/// the last one was waited for. If the driver cannot confirm that, they stay for good.
#[derive(Debug)]
pub(crate) struct Kept<P: Settles>(ManuallyDrop<P>);

/// Ends waits, and waits for kernels.
pub(crate) trait Settles {
    /// Ends the waits of kernels, and waits until none runs.
    fn settle(&self) -> Result<(), Error>;
}

impl<P: Settles> Kept<P> {
    pub(crate) fn new(parts: P) -> Self {
        Self(ManuallyDrop::new(parts))
    }

    /// Drops the parts; or returns them, if the driver refuses to wait for running work.
    pub(crate) fn end(self) -> Result<(), (Self, Error)> {
        if let Err(error) = self.0.settle() {
            return Err((self, error));
        }
        let mut ended = ManuallyDrop::new(self);
        // SAFETY: `ended` is neither used nor dropped after this, so its parts are dropped once. No
        // kernel uses them: `settle` has seen that none runs, and the caller has passed the parts
        // by value, so none is launched.
        unsafe { ManuallyDrop::drop(&mut ended.0) };
        Ok(())
    }
}

impl<P: Settles> Deref for Kept<P> {
    type Target = P;

    fn deref(&self) -> &P {
        &self.0
    }
}

impl<P: Settles> Drop for Kept<P> {
    fn drop(&mut self) {
        // If it fails, a kernel may still use the parts.
        if self.0.settle().is_ok() {
            // SAFETY: `end` forgets the value whose parts it drops, and `drop` runs once, so the
            // parts are dropped once. No kernel uses them: `settle` has seen that none runs, and
            // nothing launches kernels on a value that is being dropped.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        }
    }
}
