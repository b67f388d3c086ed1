//! From a job to the loops for it. Everything here and in the loops is inlined into a function
//! compiled for one instruction set (`dispatch`).
//!
//! All access is through raw pointers and unaligned: operands may start at any byte, and may be
//! memory that other processes map.

use super::arithmetic::Arithmetic;
use super::lane::Lane;
use super::{elements, groups};
use crate::{Job, Operand, ReduceOp, Scale};

/// An elementwise operation, by its type.
pub(super) trait Op {
    const NAME: ReduceOp;

    /// `a op b`.
    #[inline(always)]
    fn apply<A: Arithmetic>(a: A, b: A) -> A {
        match Self::NAME {
            ReduceOp::Sum => a.sum(b),
            ReduceOp::Prod => a.prod(b),
            ReduceOp::Max => a.max(b),
            ReduceOp::Min => a.min(b),
        }
    }

    /// Packs a result.
    #[inline(always)]
    fn pack<L: Lane>(acc: L::Acc) -> L::Packed {
        match Self::NAME {
            ReduceOp::Sum | ReduceOp::Prod => L::pack(acc),
            ReduceOp::Max | ReduceOp::Min => L::pack_exact(acc),
        }
    }
}

macro_rules! ops {
    ($($op:ident)*) => {$(
        pub(super) struct $op;

        impl Op for $op {
            const NAME: ReduceOp = ReduceOp::$op;
        }
    )*};
}

ops! { Sum Prod Max Min }

/// Runs a job whose sources start `from` bytes after their operands say.
///
/// # Safety
/// As for [`Compute::start`](crate::Compute::start), for those sources; `L` must be a lane of the
/// job's type, and the machine must have its instructions.
#[inline(always)]
pub(super) unsafe fn reduce<L: Lane, O: Op>(job: &Job<'_>, from: usize) {
    // SAFETY: passed on from the caller.
    unsafe {
        match (job.srcs, job.dsts) {
            ([a, b], &[dst]) if is_plain(a) && is_plain(b) => {
                let (a, b) = (a.ptr.add(from), b.ptr.add(from));
                if L::WIDTH == 1 {
                    elements::pair::<L, O>(dst, a, b, job.count);
                } else {
                    groups::pair::<L, O>(dst, a, b, job.count);
                }
            }
            _ if L::WIDTH == 1 => elements::many::<L, O>(job, from),
            _ => groups::many::<L, O>(job, from),
        }
    }
}

#[inline(always)]
pub(super) fn is_plain(operand: &Operand) -> bool {
    matches!(operand.scale, Scale::One)
}
