//! Reduction jobs, and the trait that runs them, at once or later. Knows element types and
//! operands; knows neither ranks nor schedules.

use spark_ccl_types::{Combine, DType, Scale};

/// One source of a job.
#[derive(Debug, Clone, Copy)]
pub struct Operand {
    /// First element, of any alignment.
    pub ptr: *const u8,
    /// The factor of each element.
    pub scale: Scale,
}

impl Operand {
    /// Whether there is no factor.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.scale, Scale::One)
    }
}

/// `dsts[..] = srcs[0] op srcs[1] op ...`, elementwise, left to right, over `count` elements.
///
/// With one source, it is a copy, which may be scaled. Half and 8-bit floats accumulate in f32 over
/// all sources and are rounded once; whether their products with factors are, too, is up to the
/// [`Scale`]. A destination may be the same memory as a source, or as another destination, but must
/// not overlap one partly.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// The element type of all operands.
    pub dtype: DType,
    /// The operation.
    pub op: Combine,
    /// At least one.
    pub srcs: &'a [Operand],
    /// One or two, or all ranks' buffers for one-sided steps; of any alignment.
    pub dsts: &'a [*mut u8],
    /// The number of elements.
    pub count: usize,
    /// A hint which destinations are better stored past the caches. It changes neither the result
    /// nor its ordering: as for any job, a release store or fence after the job is reported done
    /// publishes the destinations.
    pub streaming: Streaming,
    /// A hint that other threads may help.
    pub divides: bool,
}

impl Job<'_> {
    /// Whether the destination with this index is stored past the caches.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn streams(&self, index: usize) -> bool {
        match self.streaming {
            Streaming::Nothing => false,
            Streaming::Last => index + 1 == self.dsts.len(),
            Streaming::Everything => true,
        }
    }
}

/// Which destinations of a job this core's caches need not keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Streaming {
    /// None.
    Nothing,
    /// The last one: it will be read by a core that shares no cache with this one.
    Last,
    /// All: they are larger than the caches, which will have evicted them when they are read.
    Everything,
}

/// Identifies a job that was not done at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(pub u64);

/// The result of [`Compute::start`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Started {
    /// The destinations hold the result.
    Done,
    /// Not done yet: call [`Compute::poll`]. Until it is done, the caller must not touch the job's
    /// memory.
    Pending(Ticket),
}

/// Runs jobs on memory that this processor reaches, at once or later (so far, only a fake for tests
/// is late).
pub trait Compute: Send {
    /// Starts a job.
    ///
    /// # Safety
    /// The job must have at least one source, and no destination may overlap a source or another
    /// destination partly. Until the job is done, every source must be readable and every
    /// destination writable for `count` elements. Meanwhile nothing else may write the sources or
    /// touch the destinations.
    unsafe fn start(&mut self, job: &Job<'_>) -> Started;

    /// Whether the job is done. A ticket is no longer valid after its job was reported done.
    fn poll(&mut self, ticket: Ticket) -> bool;
}
