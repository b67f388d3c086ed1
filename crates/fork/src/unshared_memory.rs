//! Memory that forked children do not share.

use std::ptr::NonNull;

use crate::Process;
use crate::ranges::{Range, enlist};

/// Memory that is shared with other processes, and not with children of `fork`: they find zeros there.
#[derive(Debug)]
pub struct UnsharedMemory {
    entry: &'static Range,
    process: Process,
}

impl UnsharedMemory {
    /// From now on, children do not share this memory.
    ///
    /// # Safety
    /// The range is of whole pages that the caller has mapped to be read and written, and stays mapped until this
    /// value is dropped. Zeros are valid for all who use it.
    pub unsafe fn new(start: NonNull<u8>, bytes: usize) -> Self {
        let process = Process::here();
        // SAFETY: as the caller says; the entry is free once this value is dropped.
        let entry = unsafe { enlist(start, bytes) };
        Self { entry, process }
    }
}

impl Drop for UnsharedMemory {
    /// Before the range is unmapped, which may be anybody's afterwards.
    fn drop(&mut self) {
        if self.process.is_here() {
            self.entry.free();
        }
    }
}
