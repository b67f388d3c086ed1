//! Chooses the loops for a job. Everything here and in the loops is inlined into a function that is
//! compiled for one instruction set (`dispatch`).
//!
//! All accesses use raw pointers without alignment: operands may start at any byte, and may be
//! memory that other processes map.

use std::ptr;

use super::lane::{Lane, Op};
use super::{elements, groups};
use crate::{Job, Operand};

/// Small enough for a block to stay in the L1 cache until all destinations have been written.
const BLOCK: usize = 4096;

/// Runs a job whose sources start `from` bytes after the addresses in its operands.
///
/// # Safety
/// The job must have a source. Each source must be readable for `job.count` elements, `from` bytes
/// after its address, and each destination writable for as many. No destination may overlap another
/// operand partly, and nothing else may write the sources or touch the destinations meanwhile. `L`
/// must be a lane of the job's type, not a tile, and the machine must have its instructions.
#[inline(always)]
pub(super) unsafe fn reduce<L: Lane, O: Op>(job: &Job<'_>, from: usize) {
    // SAFETY: the job has a source. From `from` on, each source has `job.count` elements, and so
    // has each destination, which overlaps no other operand partly and is not used by others
    // meanwhile. `L` is a lane of the job's type and no tile, and the machine has its instructions.
    // This function requires all of that, and the two functions require no more.
    unsafe {
        match (job.srcs, job.dsts) {
            // A short path, because a job may have as little as one element.
            ([a, b], &[dst]) if a.is_plain() && b.is_plain() => {
                pair::<L, O>(dst, a.ptr.add(from), b.ptr.add(from), job.count);
            }
            _ => reduce_into_all::<L, O>(job, from),
        }
    }
}

/// The general case. A single destination is written in one pass. Several are written block by
/// block: the first by the loops, and the others by copies of it while it is in the cache. (Storing
/// to all destinations at once is slower, and much slower if they are not aligned.) A block's
/// sources are no longer needed when it is copied.
///
/// # Safety
/// The job must have a source. Each source must be readable for `job.count` elements, `from` bytes
/// after its address, and each destination writable for as many. No destination may overlap another
/// operand partly, and nothing else may use the operands meanwhile. `L` must be a lane of the job's
/// type, not a tile, and the machine must have its instructions.
#[inline(always)]
unsafe fn reduce_into_all<L: Lane, O: Op>(job: &Job<'_>, from: usize) {
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
        // SAFETY: there is a source, and all operands hold `job.count` elements, so `len` of them
        // from `at` on lie within each: `first + len <= job.count`. No destination overlaps another
        // operand partly, and nothing else uses the operands. `L` is a lane of the job's type and
        // no tile, and the machine has its instructions. Operands, lane and machine are as this
        // function requires.
        unsafe {
            reduce_into_one::<L, O>(dst.add(at), job.srcs, from + at, len);
            for other in others {
                // `ptr::copy` allows a destination that is listed twice.
                ptr::copy(dst.add(at), other.add(at), len * L::SIZE);
            }
        }
        first += len;
    }
}

/// Reduces `len` elements of all sources, which start `from` bytes after their addresses, into one
/// destination.
///
/// # Safety
/// There must be a source. Each must be readable for `len` elements, `from` bytes after its
/// address, and `dst` writable for as many; it must not overlap a source partly. Nothing else may
/// use them meanwhile. `L` must be a lane of the elements' type, not a tile, and the machine must
/// have its instructions.
#[inline(always)]
unsafe fn reduce_into_one<L: Lane, O: Op>(dst: *mut u8, srcs: &[Operand], from: usize, len: usize) {
    // SAFETY: there is a source; each holds `len` elements `from` bytes on, and `dst` holds as
    // many, which overlap no source partly. `L` is a lane and no tile, and the machine has its
    // instructions. This function requires all of that. `elements` also requires groups of one,
    // which its arm checks.
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
/// Sources and destination must hold `len` elements, and overlap not at all or entirely. `L` must
/// be a lane of the elements' type, not a tile, and the machine must have its instructions.
#[inline(always)]
unsafe fn pair<L: Lane, O: Op>(dst: *mut u8, a: *const u8, b: *const u8, len: usize) {
    // SAFETY: sources and destination hold `len` elements, and overlap not at all or entirely; `L`
    // is a lane and no tile, and the machine has its instructions. This function requires all of
    // that. `elements` also requires groups of one, which the condition checks.
    unsafe {
        if L::WIDTH == 1 {
            elements::pair::<L, O>(dst, a, b, len);
        } else {
            groups::pair::<L, O>(dst, a, b, len);
        }
    }
}
