//! The trait of all engines.
//!
//! An engine does whole collectives on one kind of memory: that of `host` on memory of the
//! processor, those of `device` on memory of GPUs. It is given checked tasks, whose element types
//! are values and not Rust's types.

use std::time::Duration;

use crate::error::Error;
use crate::task::Task;

/// Does whole collectives on one kind of memory.
pub(crate) trait Engine: Send + Sync {
    /// Runs a checked task to its end.
    ///
    /// # Errors
    /// What is wrong with the task for this engine; the fault that has ended it.
    fn run(&self, task: &mut Task) -> Result<(), Error>;

    /// Waits until everything in flight has ended.
    ///
    /// # Errors
    /// The fault that has cut it short.
    fn drain(&self) -> Result<(), Error>;

    /// Changes how long each operation may take that begins from now on.
    fn set_timeout(&self, timeout: Duration);
}
