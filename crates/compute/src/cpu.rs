//! Reductions on the calling thread. Knows types, operations and instruction sets; knows neither
//! ranks nor links.
//!
//! All float arithmetic begins in [`Cpu::start`](Compute::start), which sets the thread's float
//! mode.

mod arithmetic;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_float8;
mod copy;
mod dispatch;
mod elements;
#[cfg(target_arch = "x86_64")]
mod fp16;
mod groups;
mod kernel;
mod lane;
#[cfg(target_arch = "aarch64")]
mod neon;
mod slow_copies;
#[cfg(target_arch = "x86_64")]
mod streaming;
#[cfg(test)]
mod tests;

use dispatch::{Kernel, Kernels, Level};
pub use slow_copies::copies_slowly;
use spark_ccl_types::Scale;

#[cfg(target_arch = "x86_64")]
use crate::Streaming;
use crate::mode::with_default_mode;
use crate::{Compute, Job, Started, Ticket};

/// Runs each job immediately, on the calling thread, with the widest vectors that the machine has.
/// Does not allocate.
#[derive(Debug, Clone, Copy)]
pub struct Cpu {
    level: Level,
    kernels: &'static Kernels,
}

impl Cpu {
    /// Detects what the machine supports.
    pub fn new() -> Self {
        Self::at(Level::best())
    }

    fn at(level: Level) -> Self {
        let kernels = level.kernels();
        Self { level, kernels }
    }

    /// The instruction set in use, for logs: `avx512fp16`, `avx512`, `avx2`, `neon` or `portable`.
    pub fn level(self) -> &'static str {
        self.level.name()
    }
}

/// # Safety
/// `kernel` must be one for the job's type and operation, at a level that the machine supports. The
/// conditions of [`Compute::start`] must hold for the job.
unsafe fn compute(kernel: Kernel, job: &Job<'_>) {
    // SAFETY: `kernel` is one for the job's type and operation, and the machine supports its level.
    // The job is as `Compute::start` demands. This function requires all of that, and neither
    // `streaming::reduce` nor a kernel from element 0 on requires more.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if job.streaming != Streaming::Nothing {
            return streaming::reduce(kernel, job);
        }
        kernel(job, 0);
    }
}

impl Default for Cpu {
    fn default() -> Self {
        Self::new()
    }
}

impl Compute for Cpu {
    #[inline]
    unsafe fn start(&mut self, job: &Job<'_>) -> Started {
        debug_assert!(!job.srcs.is_empty(), "a job needs a source");
        let kernel = self.kernels[job.dtype as usize][job.op as usize];
        // SAFETY: the job has a source, its operands hold `job.count` elements, no destination
        // overlaps another operand partly, and nothing else uses them meanwhile: this function
        // requires that. `kernel` is of the job's type and operation, and of a level that the
        // machine supports.
        unsafe {
            match job.srcs {
                #[cfg(target_arch = "x86_64")]
                [src] if job.streaming != Streaming::Nothing && src.scale == Scale::One => {
                    streaming::copy(src.ptr, job);
                }
                [src] if src.scale == Scale::One => copy::copy(src.ptr, job),
                _ if job.dtype.is_integer() => compute(kernel, job),
                _ => with_default_mode(|| compute(kernel, job)),
            }
        }
        Started::Done
    }

    fn poll(&mut self, _ticket: Ticket) -> bool {
        true
    }
}
