//! From a job to the loops for it. Everything here and in the loops is inlined into a function
//! compiled for one instruction set (`dispatch`).
//!
//! All access is through raw pointers and unaligned: operands may start at any byte, and may be
//! memory that other processes map.

use std::ptr;

use super::lane::{Lane, Op};
use super::{elements, groups};
use crate::{Job, Operand};

/// The piece in which several destinations are written stays in the first-level cache.
const BLOCK: usize = 4096;

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
            // A way of its own, for a job may be as small as an element.
            ([a, b], &[dst]) if a.is_plain() && b.is_plain() => {
                pair::<L, O>(dst, a.ptr.add(from), b.ptr.add(from), job.count);
            }
            _ => into_all::<L, O>(job, from),
        }
    }
}

/// The general case. A single destination is written in one go; several, block by block: into the
/// first, and from there, while it is in the cache, into the others. (Stores to all at once are
/// slower, much so where they are not aligned.) A block's sources are no longer needed by then.
///
/// # Safety
/// As for [`reduce`].
#[inline(always)]
unsafe fn into_all<L: Lane, O: Op>(job: &Job<'_>, from: usize) {
    let Some((&dst, others)) = job.dsts.split_first() else {
        return;
    };
    let most = if others.is_empty() {
        job.count
    } else {
        BLOCK / L::SIZE
    };
    let mut first = 0;
    while first < job.count {
        let (at, len) = (first * L::SIZE, most.min(job.count - first));
        // SAFETY: `len` elements from `at` on lie within the operands.
        unsafe {
            into_one::<L, O>(dst.add(at), job.srcs, from + at, len);
            for other in others {
                // Does not mind a destination that is given twice.
                ptr::copy(dst.add(at), other.add(at), len * L::SIZE);
            }
        }
        first += len;
    }
}

/// `len` elements of all sources, from `from` bytes on, into one destination.
///
/// # Safety
/// As for [`reduce`].
#[inline(always)]
unsafe fn into_one<L: Lane, O: Op>(dst: *mut u8, srcs: &[Operand], from: usize, len: usize) {
    // SAFETY: passed on from the caller.
    unsafe {
        match srcs {
            [a, b] if a.is_plain() && b.is_plain() => {
                pair::<L, O>(dst, a.ptr.add(from), b.ptr.add(from), len);
            }
            _ if L::WIDTH == 1 => elements::many::<L, O>(dst, srcs, from, len),
            _ => groups::many::<L, O>(dst, srcs, from, len),
        }
    }
}

/// # Safety
/// Sources and destination must hold `len` elements, and overlap not at all or entirely.
#[inline(always)]
unsafe fn pair<L: Lane, O: Op>(dst: *mut u8, a: *const u8, b: *const u8, len: usize) {
    // SAFETY: passed on from the caller.
    unsafe {
        if L::WIDTH == 1 {
            elements::pair::<L, O>(dst, a, b, len);
        } else {
            groups::pair::<L, O>(dst, a, b, len);
        }
    }
}
