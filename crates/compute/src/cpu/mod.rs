//! Reductions on the calling thread.

mod dispatch;
#[cfg(target_arch = "aarch64")]
mod half_aarch64;
#[cfg(target_arch = "x86_64")]
mod half_x86;
mod kernel;
mod lane;
#[cfg(test)]
mod tests;

use std::ptr;

use dispatch::Level;

use crate::{Compute, Job, Scale, Started, Ticket};

/// Runs each job at once, on the calling thread, with the widest vectors that the machine has.
/// Allocates nothing.
#[derive(Debug, Clone, Copy)]
pub struct Cpu {
    level: Level,
}

impl Cpu {
    /// Looks up what the machine can do.
    pub fn new() -> Self {
        Self {
            level: Level::best(),
        }
    }

    /// The instruction set in use, for logs: `avx512`, `avx2`, `neon` or `portable`.
    pub fn level(self) -> &'static str {
        self.level.name()
    }
}

impl Default for Cpu {
    fn default() -> Self {
        Self::new()
    }
}

impl Compute for Cpu {
    unsafe fn start(&mut self, job: &Job<'_>) -> Started {
        debug_assert!(!job.srcs.is_empty(), "a job needs a source");
        // SAFETY: the caller vouches for the job's memory.
        unsafe {
            match job.srcs {
                [src] if src.scale == Scale::One => copy(src.ptr, job),
                _ => self.level.run(job),
            }
        }
        Started::Done
    }

    fn poll(&mut self, _ticket: Ticket) -> bool {
        true
    }
}

/// Copies the only source, byte for byte.
///
/// # Safety
/// Source and destinations must hold the job's elements.
unsafe fn copy(src: *const u8, job: &Job<'_>) {
    for &dst in job.dsts {
        if !ptr::eq(src, dst) {
            // SAFETY: see above; `ptr::copy` asks nothing about overlap.
            unsafe { ptr::copy(src, dst, job.count * job.dtype.size()) };
        }
    }
}
