//! From a job to the loops for it. Everything here and in the loops is inlined into a function
//! compiled for one instruction set (`dispatch`).
//!
//! All access is through raw pointers and unaligned: operands may start at any byte, and may be
//! memory that other processes map.

use super::arithmetic::Arithmetic;
use super::lane::Lane;
use super::{elements, groups};
use crate::{Job, Operand, Scale};

/// An elementwise operation.
pub(super) trait Op {
    /// `a op b`.
    fn apply<A: Arithmetic>(a: A, b: A) -> A;

    /// Packs a result.
    fn pack<L: Lane>(acc: L::Acc) -> L::Packed;
}

macro_rules! ops {
    ($($op:ident: $method:ident, $pack:ident;)*) => {$(
        pub(super) struct $op;

        impl Op for $op {
            #[inline(always)]
            fn apply<A: Arithmetic>(a: A, b: A) -> A {
                a.$method(b)
            }

            #[inline(always)]
            fn pack<L: Lane>(acc: L::Acc) -> L::Packed {
                L::$pack(acc)
            }
        }
    )*};
}

ops! {
    Sum: sum, pack;
    Prod: prod, pack;
    Max: max, pack_exact;
    Min: min, pack_exact;
}

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

/// `a op b`, rounded.
#[inline(always)]
pub(super) fn combine<L: Lane, O: Op>(a: L::Packed, b: L::Packed) -> L::Packed {
    O::pack::<L>(O::apply(L::unpack(a), L::unpack(b)))
}
