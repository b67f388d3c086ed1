//! The loops. Everything here is inlined into a function compiled for one instruction set
//! (`dispatch`), and written so that LLVM vectorises it there.
//!
//! All access is through raw pointers and unaligned: operands may start at any byte, and may be
//! memory that other processes map.

use std::mem::MaybeUninit;
use std::ptr;

use super::lane::Lane;
use crate::{Job, Operand, Scale};

/// Intermediate values, and the pieces in which several destinations are written, stay in the
/// first-level cache.
const BLOCK: usize = 4096;

/// An elementwise operation.
pub(super) trait Op {
    /// `a op b`.
    fn apply<L: Lane>(a: L::Acc, b: L::Acc) -> L::Acc;
}

macro_rules! ops {
    ($($op:ident: $method:ident;)*) => {$(
        pub(super) struct $op;

        impl Op for $op {
            #[inline(always)]
            fn apply<L: Lane>(a: L::Acc, b: L::Acc) -> L::Acc {
                L::$method(a, b)
            }
        }
    )*};
}

ops! {
    Sum: sum;
    Prod: prod;
    Max: max;
    Min: min;
}

/// Runs a job.
///
/// # Safety
/// As for [`Compute::start`](crate::Compute::start); `L` must be a lane of the job's type, whose
/// instructions the machine has.
#[inline(always)]
pub(super) unsafe fn reduce<L: Lane, O: Op>(job: &Job<'_>) {
    let whole = job.count - job.count % L::WIDTH;
    // SAFETY: passed on from the caller: both ranges lie within the job's elements.
    unsafe {
        span::<L, O>(job, 0, whole);
        // The constant keeps the compiler from making the loops twice where there is no rest.
        if L::WIDTH > 1 && whole < job.count {
            span::<L::Single, O>(job, whole, job.count);
        }
    }
}

/// Runs the elements `first..last` of a job, a multiple of the lane's width.
///
/// # Safety
/// As for [`reduce`], and `last` must not exceed the job's count.
#[inline(always)]
unsafe fn span<L: Lane, O: Op>(job: &Job<'_>, first: usize, last: usize) {
    let (offset, len) = (first * L::SIZE, last - first);
    // SAFETY: offsets and lengths stay within the job's elements, for whose memory the caller
    // vouches; what each function asks beyond that is said beside it.
    unsafe {
        match (job.srcs, job.dsts) {
            ([a, b], [dst]) if a.scale == Scale::One && b.scale == Scale::One => {
                two::<L, O>(dst.add(offset), a.ptr.add(offset), b.ptr.add(offset), len);
            }
            ([a, b], _) if a.scale == Scale::One && b.scale == Scale::One => {
                two_to_many::<L, O>(job, a.ptr, b.ptr, offset, len);
            }
            _ => many::<L, O>(job, offset, len),
        }
    }
}

/// Two sources into several destinations: block by block into the first, and from there, while it
/// is in the cache, into the others. A block's sources are no longer needed by then.
///
/// # Safety
/// As for [`two`], from `offset` bytes on, for all destinations of the job.
#[inline(always)]
unsafe fn two_to_many<L: Lane, O: Op>(
    job: &Job<'_>,
    a: *const u8,
    b: *const u8,
    mut offset: usize,
    mut len: usize,
) {
    let Some((&dst, others)) = job.dsts.split_first() else {
        return;
    };
    while len > 0 {
        let block = len.min(BLOCK / L::SIZE);
        // SAFETY: `block` elements from `offset` lie within the operands.
        unsafe {
            two::<L, O>(dst.add(offset), a.add(offset), b.add(offset), block);
            spread(dst, others, offset, block * L::SIZE);
        }
        offset += block * L::SIZE;
        len -= block;
    }
}

/// Copies a block of the first destination into the others.
///
/// # Safety
/// All must hold `len` bytes from `offset` on.
#[inline(always)]
unsafe fn spread(dst: *mut u8, others: &[*mut u8], offset: usize, len: usize) {
    for other in others {
        // SAFETY: see above; `ptr::copy` does not mind a destination that is given twice.
        unsafe { ptr::copy(dst.add(offset), other.add(offset), len) };
    }
}

/// Two sources into one destination.
///
/// A vectorised loop asks at its start whether its operands overlap, and if so goes one by one.
/// Where the destination is a source, the loop must therefore say so. That swaps the operands of
/// `dst = a op dst`, which changes nothing: the operations commute, and any NaN is canonical.
///
/// # Safety
/// Sources and destination must hold `len` elements, a multiple of the lane's width, and overlap
/// not at all or entirely.
#[inline(always)]
unsafe fn two<L: Lane, O: Op>(dst: *mut u8, a: *const u8, b: *const u8, len: usize) {
    // SAFETY: passed on from the caller.
    unsafe {
        if ptr::eq(dst, a) {
            in_place::<L, O>(dst, b, len);
        } else if ptr::eq(dst, b) {
            in_place::<L, O>(dst, a, len);
        } else {
            for i in 0..len / L::WIDTH {
                let at = i * L::WIDTH * L::SIZE;
                L::store(
                    dst.add(at),
                    O::apply::<L>(L::load(a.add(at)), L::load(b.add(at))),
                );
            }
        }
    }
}

/// `dst = dst op src`.
///
/// # Safety
/// As for [`two`].
#[inline(always)]
unsafe fn in_place<L: Lane, O: Op>(dst: *mut u8, src: *const u8, len: usize) {
    for i in 0..len / L::WIDTH {
        let at = i * L::WIDTH * L::SIZE;
        // SAFETY: the group at `at` lies within `len` elements.
        unsafe {
            let dst = dst.add(at);
            L::store(dst, O::apply::<L>(L::load(dst), L::load(src.add(at))));
        }
    }
}

#[repr(C, align(64))]
struct Scratch([MaybeUninit<u8>; BLOCK]);

/// The general case: any number of sources, with factors. Accumulates block by block, and writes
/// a block's results only after all its sources are read.
///
/// # Safety
/// As for [`two`], from `offset` bytes on, for all operands of the job.
#[inline(always)]
unsafe fn many<L: Lane, O: Op>(job: &Job<'_>, mut offset: usize, mut len: usize) {
    let (Some((first, rest)), Some((&dst, others))) =
        (job.srcs.split_first(), job.dsts.split_first())
    else {
        return;
    };
    let mut scratch = Scratch([MaybeUninit::uninit(); BLOCK]);
    let acc = scratch.0.as_mut_ptr().cast::<L::Acc>();
    while len > 0 {
        let groups = (len / L::WIDTH).min(BLOCK / size_of::<L::Acc>());
        let elements = groups * L::WIDTH;
        // SAFETY: `elements` from `offset` on lie within the operands, and `groups` accumulators
        // within the scratch block, aligned for any of them; the first loop initialises them.
        unsafe {
            each::<L>(first, offset, groups, |i, x| acc.add(i).write(x));
            for src in rest {
                each::<L>(src, offset, groups, |i, x| {
                    acc.add(i).write(O::apply::<L>(acc.add(i).read(), x));
                });
            }
            for i in 0..groups {
                L::store(dst.add(offset + i * L::WIDTH * L::SIZE), acc.add(i).read());
            }
            spread(dst, others, offset, elements * L::SIZE);
        }
        offset += elements * L::SIZE;
        len -= elements;
    }
}

/// Loads the groups of a source, scaled, and hands them on.
///
/// # Safety
/// The source must hold `groups` groups from `offset` bytes on.
#[inline(always)]
unsafe fn each<L: Lane>(
    src: &Operand,
    offset: usize,
    groups: usize,
    mut then: impl FnMut(usize, L::Acc),
) {
    // SAFETY: see above.
    let load = |i: usize| unsafe { L::load(src.ptr.add(offset + i * L::WIDTH * L::SIZE)) };
    if src.scale == Scale::One {
        for i in 0..groups {
            then(i, load(i));
        }
    } else {
        let factor = L::factor(src.scale);
        for i in 0..groups {
            then(i, L::scale(load(i), factor));
        }
    }
}
