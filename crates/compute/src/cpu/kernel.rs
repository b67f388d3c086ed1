//! The loops. Everything here is inlined into a function compiled for one instruction set
//! (`dispatch`), and written so that LLVM vectorises it there.
//!
//! All access is through raw pointers and unaligned: operands may start at any byte, and may be
//! memory that other processes map.

use std::mem::MaybeUninit;
use std::ptr;

use super::dispatch::Compiled;
use super::lane::Lane;
use crate::{Job, Scale};

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

/// The part of a job that depends on its operation, to be compiled as `C`.
///
/// # Safety
/// As for [`Compute::start`](crate::Compute::start); `L` must be a lane of the job's type, and the
/// machine must have the instructions of `L` and `C`.
#[inline(always)]
pub(super) unsafe fn reduce<C: Compiled, L: Lane, O: Op>(job: &Job<'_>) {
    // SAFETY: passed on from the caller: all ranges lie within the job's elements.
    unsafe {
        let whole = job.count - job.count % L::WIDTH;
        match job.srcs {
            [a, b] if a.scale == Scale::One && b.scale == Scale::One => {
                two::<L, O>(job, a.ptr, b.ptr, whole);
            }
            _ => many::<C, L, O>(job, 0, whole),
        }
        // The constant keeps the compiler from making the loops twice where there is no rest.
        if L::WIDTH > 1 {
            many::<C, L::Single, O>(job, whole, job.count);
        }
    }
}

/// Two sources: in one go into a single destination. With several, block by block into the first,
/// and from there, while it is in the cache, into the others; a block's sources are no longer
/// needed by then.
///
/// # Safety
/// As for [`pair`], for all destinations of the job.
#[inline(always)]
unsafe fn two<L: Lane, O: Op>(job: &Job<'_>, a: *const u8, b: *const u8, len: usize) {
    let Some((&dst, others)) = job.dsts.split_first() else {
        return;
    };
    let most = if others.is_empty() {
        len
    } else {
        BLOCK / L::SIZE
    };
    let mut first = 0;
    while first < len {
        let block = most.min(len - first);
        let offset = first * L::SIZE;
        // SAFETY: `block` elements from `offset` lie within the operands.
        unsafe {
            pair::<L, O>(dst.add(offset), a.add(offset), b.add(offset), block);
            spread(dst, others, offset, block * L::SIZE);
        }
        first += block;
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
unsafe fn pair<L: Lane, O: Op>(dst: *mut u8, a: *const u8, b: *const u8, len: usize) {
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
/// As for [`pair`].
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

impl Scratch {
    #[inline(always)]
    fn new() -> Self {
        Self([MaybeUninit::uninit(); BLOCK])
    }
}

/// The general case: any number of sources, with factors. Accumulates block by block, and writes
/// a block's results only after all its sources are read.
///
/// # Safety
/// As for [`pair`], for the elements `first..last` of all operands of the job.
#[inline(always)]
unsafe fn many<C: Compiled, L: Lane, O: Op>(job: &Job<'_>, mut first: usize, last: usize) {
    let Some((&dst, others)) = job.dsts.split_first() else {
        return;
    };
    let (mut accs, mut scaled) = (Scratch::new(), Scratch::new());
    let acc = accs.0.as_mut_ptr().cast::<Acc<L>>();
    let most = BLOCK / size_of::<Acc<L>>() * L::Blocked::WIDTH;
    while first < last {
        let (offset, block) = (first * L::SIZE, most.min(last - first));
        let groups = block / L::Blocked::WIDTH;
        for (i, src) in job.srcs.iter().enumerate() {
            // SAFETY: `block` elements lie within the source, and also within each scratch block,
            // as no element is larger than its accumulator; `accs` is aligned for accumulators,
            // and initialised by the first source.
            unsafe {
                let mut ptr = src.ptr.add(offset);
                if src.scale != Scale::One {
                    let to = scaled.0.as_mut_ptr().cast();
                    C::scale::<L>(to, ptr, src.scale, block / L::WIDTH);
                    ptr = to;
                }
                if i == 0 {
                    C::widen::<L::Blocked>(acc, ptr, groups);
                } else {
                    fold::<L::Blocked, O>(acc, ptr, groups);
                }
            }
        }
        // SAFETY: the block lies within the destinations.
        unsafe {
            C::narrow::<L::Blocked>(dst.add(offset), acc, groups);
            spread(dst, others, offset, block * L::SIZE);
        }
        first += block;
    }
}

type Acc<L> = <<L as Lane>::Blocked as Lane>::Acc;

/// `acc = acc op src`.
///
/// # Safety
/// Both must hold `groups`; `acc` aligned.
#[inline(always)]
unsafe fn fold<L: Lane, O: Op>(acc: *mut L::Acc, src: *const u8, groups: usize) {
    for i in 0..groups {
        // SAFETY: `i < groups`.
        unsafe {
            let acc = acc.add(i);
            acc.write(O::apply::<L>(
                acc.read(),
                L::load(src.add(i * L::WIDTH * L::SIZE)),
            ));
        }
    }
}

/// `acc = src`.
///
/// # Safety
/// Both must hold `groups`; `acc` aligned.
#[inline(always)]
pub(super) unsafe fn widen<L: Lane>(acc: *mut L::Acc, src: *const u8, groups: usize) {
    for i in 0..groups {
        // SAFETY: `i < groups`.
        unsafe { acc.add(i).write(L::load(src.add(i * L::WIDTH * L::SIZE))) };
    }
}

/// `dst = acc`, rounded to the type.
///
/// # Safety
/// Both must hold `groups`; `acc` aligned.
#[inline(always)]
pub(super) unsafe fn narrow<L: Lane>(dst: *mut u8, acc: *const L::Acc, groups: usize) {
    for i in 0..groups {
        // SAFETY: `i < groups`.
        unsafe { L::store(dst.add(i * L::WIDTH * L::SIZE), acc.add(i).read()) };
    }
}

/// `dst = src * scale`, rounded to the type.
///
/// # Safety
/// Both must hold `groups`, and overlap not at all.
#[inline(always)]
pub(super) unsafe fn scale<L: Lane>(dst: *mut u8, src: *const u8, scale: Scale, groups: usize) {
    let factor = L::factor(scale);
    for i in 0..groups {
        let at = i * L::WIDTH * L::SIZE;
        // SAFETY: `i < groups`.
        unsafe { L::store(dst.add(at), L::times(L::load(src.add(at)), factor)) };
    }
}
