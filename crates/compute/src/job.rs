//! Reductions as jobs that may finish later.

use std::fmt;
use std::str::FromStr;

use crate::DType;

/// The elementwise operation of a reduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReduceOp {
    /// Addition; integers wrap.
    Sum,
    /// Multiplication; integers wrap.
    Prod,
    /// The larger; NaN wins.
    Max,
    /// The smaller; NaN wins.
    Min,
}

impl ReduceOp {
    /// Every operation.
    pub const ALL: [Self; 4] = [Self::Sum, Self::Prod, Self::Max, Self::Min];

    /// Its name as nccl-tests spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Max => "max",
            Self::Min => "min",
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no elementwise operation's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown reduction {0:?}: use one of sum, prod, max, min")]
pub struct UnknownReduceOp(pub String);

impl FromStr for ReduceOp {
    type Err = UnknownReduceOp;

    fn from_str(name: &str) -> Result<Self, UnknownReduceOp> {
        Self::ALL
            .into_iter()
            .find(|op| op.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| UnknownReduceOp(name.to_owned()))
    }
}

/// A factor applied to an operand before it is reduced or copied (pre-multiplied sum, float avg).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scale {
    /// No factor.
    One,
    /// For the float types: the product is taken in f32 (f64 for f64) and rounded to the type, so
    /// scaling first and reducing later gives the same bits. Integer types use its whole part.
    Float(f64),
    /// For the integer types: wrapping product; the low bits of the factor. Float types use its
    /// value.
    Int(u64),
}

/// One source of a job.
#[derive(Debug, Clone, Copy)]
pub struct Operand {
    /// First element, of any alignment.
    pub ptr: *const u8,
    /// Its factor.
    pub scale: Scale,
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
    pub op: ReduceOp,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op_names_lead_back() {
        for op in ReduceOp::ALL {
            assert_eq!(op.name().parse(), Ok(op));
        }
        assert!("avg".parse::<ReduceOp>().is_err());
    }
}
