//! Reductions as jobs that may finish later.

use spark_ccl_types::{Combine, DType, Scale};

/// One source of a job.
#[derive(Debug, Clone, Copy)]
pub struct Operand {
    /// First element, of any alignment.
    pub ptr: *const u8,
    /// Its factor.
    pub scale: Scale,
}

impl Operand {
    /// Whether it has no factor.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.scale, Scale::One)
    }
}

/// `dsts[..] = srcs[0] op srcs[1] op ...`, elementwise, left to right, over `count` elements.
///
/// One source is a (scaled) copy. Half and 8-bit floats accumulate in f32 over all sources and
/// round once. A destination may be the same memory as a source, but must not overlap one partly.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// Element type of all operands.
    pub dtype: DType,
    /// The operation.
    pub op: Combine,
    /// At least one.
    pub srcs: &'a [Operand],
    /// One or two (or all ranks' buffers, for one-sided steps); any alignment.
    pub dsts: &'a [*mut u8],
    /// Elements.
    pub count: usize,
    /// A hint that nobody reads the destinations before the caches have forgotten them: worth it for
    /// destinations larger than the caches. The result is the same, and so is its order: as for
    /// any job, a release store or fence after it was reported done publishes the destinations.
    pub streaming: bool,
}

/// Names a job that was not finished at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(pub u64);

/// Answer to [`Compute::start`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Started {
    /// The destinations hold the result.
    Done,
    /// Not yet: ask [`Compute::poll`]. All memory of the job stays untouched by the caller until then.
    Pending(Ticket),
}

/// Something that runs jobs: the CPU at once, a GPU (or a test's delayed fake) later.
pub trait Compute: Send {
    /// Starts a job.
    ///
    /// # Safety
    /// Every source must be readable and every destination writable for `count` elements until
    /// the job is done, and nothing else may write the sources or touch the destinations meanwhile.
    unsafe fn start(&mut self, job: &Job<'_>) -> Started;

    /// Whether the job is done. A ticket that was reported done is forgotten.
    fn poll(&mut self, ticket: Ticket) -> bool;
}
