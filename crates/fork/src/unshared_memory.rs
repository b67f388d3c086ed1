//! Memory that forked children do not share.

use std::ptr::NonNull;

use crate::Process;
use crate::ranges::{Range, enlist};

/// Memory that is shared with other processes, but not with children of `fork`, which find zeros
/// there.
#[derive(Debug)]
pub struct UnsharedMemory {
    entry: &'static Range,
    process: Process,
}

impl UnsharedMemory {
    /// From now on, children do not share this memory.
    ///
    /// # Safety
    /// The range consists of whole pages that the caller has mapped for reading and writing, and
    /// stays mapped until this value is dropped. Zeros are a valid value for every use of the
    /// memory.
    pub unsafe fn new(start: NonNull<u8>, bytes: usize) -> Self {
        let process = Process::here();
        // SAFETY: the range is whole pages, mapped for reading and writing until this value is
        // dropped, and zeros are valid there: this function requires that. Only dropping this value
        // frees the entry.
        let entry = unsafe { enlist(start, bytes) };
        Self { entry, process }
    }
}

impl Drop for UnsharedMemory {
    /// Runs before the owner unmaps the range: the addresses may be reused from then on.
    fn drop(&mut self) {
        if self.process.is_here() {
            self.entry.free();
        }
    }
}
