//! Loops over single elements, which LLVM vectorizes.

use std::mem::MaybeUninit;
use std::ptr;

use spark_ccl_types::Scale;

use super::lane::{Lane, Op};
use crate::Operand;

/// Small enough for intermediate values to stay in the L1 cache.
const BLOCK: usize = 4096;

/// Reduces two sources into one destination.
///
/// A vectorized loop checks at its start whether its operands overlap, and then runs element by
/// element if they do. If the destination is a source, the loop must therefore be written in place.
/// This swaps the operands of `dst = a op dst`, but not the result: the operations commute, and NaN
/// is canonical.
///
/// # Safety
/// Sources and destination must hold `len` elements, and overlap not at all or entirely; `L` must
/// have groups of one. The machine must have the lane's instructions.
#[inline(always)]
pub(super) unsafe fn pair<L: Lane, O: Op>(dst: *mut u8, a: *const u8, b: *const u8, len: usize) {
    // SAFETY: a group is one element, and all operands hold `len` of them, so element `i < len` may
    // be read and written; `in_place` is passed operands that hold as many, and that overlap not at
    // all or entirely. The machine has the lane's instructions. This function requires all of that.
    unsafe {
        if ptr::eq(dst, a) {
            in_place::<L, O>(dst, b, len);
        } else if ptr::eq(dst, b) {
            in_place::<L, O>(dst, a, len);
        } else {
            for i in 0..len {
                let at = i * L::SIZE;
                let packed = L::combine::<O>(L::read(a.add(at)), L::read(b.add(at)));
                L::write(dst.add(at), packed);
            }
        }
    }
}

/// `dst = dst op src`.
///
/// # Safety
/// Source and destination must hold `len` elements, and must not overlap partly. `L` must have
/// groups of one. The machine must have the lane's instructions.
#[inline(always)]
unsafe fn in_place<L: Lane, O: Op>(dst: *mut u8, src: *const u8, len: usize) {
    for i in 0..len {
        // SAFETY: a group is one element, and both operands hold `len` of them, so element
        // `i < len` may be read and written. The machine has the lane's instructions. This function
        // requires all of that.
        unsafe {
            let dst = dst.add(i * L::SIZE);
            L::write(
                dst,
                L::combine::<O>(L::read(dst), L::read(src.add(i * L::SIZE))),
            );
        }
    }
}

#[repr(C, align(64))]
struct Scratch([MaybeUninit<u8>; BLOCK]);

/// The general case: any number of sources, with factors. It accumulates block by block.
///
/// # Safety
/// The sources must hold `len` elements from `from` bytes on, and the destination as many; they may
/// be the same, but must not overlap partly. There must be a source. `L` must have groups of one,
/// and the machine must have its instructions.
#[inline(always)]
pub(super) unsafe fn many<L: Lane, O: Op>(dst: *mut u8, srcs: &[Operand], from: usize, len: usize) {
    let mut scratch = Scratch([MaybeUninit::uninit(); BLOCK]);
    let acc = scratch.0.as_mut_ptr().cast::<L::Acc>();
    let most = BLOCK / size_of::<L::Acc>();
    let mut first = 0;
    while first < len {
        let (at, block) = (first * L::SIZE, most.min(len - first));
        // SAFETY: sources and destination hold `len` elements, so `block` of them from `at` on lie
        // within each: `first + block <= len`. The scratch has room for `most >= block`
        // accumulators, and is aligned for them; the first source, and there is one, initialises
        // those that are read. A group is one element, and the machine has the lane's instructions.
        // The operands, the groups and the machine are as this function requires.
        unsafe {
            for (i, src) in srcs.iter().enumerate() {
                let ptr = src.ptr.add(from + at);
                match (i, src.is_plain()) {
                    (0, true) => fold::<L, O, true, false>(acc, ptr, src.scale, block),
                    (0, false) => fold::<L, O, true, true>(acc, ptr, src.scale, block),
                    (_, true) => fold::<L, O, false, false>(acc, ptr, src.scale, block),
                    (_, false) => fold::<L, O, false, true>(acc, ptr, src.scale, block),
                }
            }
            for i in 0..block {
                let packed = O::pack::<L>(acc.add(i).read());
                L::write(dst.add(at + i * L::SIZE), packed);
            }
        }
        first += block;
    }
}

/// `acc = acc op src * scale`; without `acc` if `FIRST`, without `scale` unless `SCALED`.
///
/// # Safety
/// Both must hold `len` elements, and `acc` must be aligned; unless `FIRST`, its elements must be
/// initialised. `L` must have groups of one, and the machine must have its instructions.
#[inline(always)]
unsafe fn fold<L: Lane, O: Op, const FIRST: bool, const SCALED: bool>(
    acc: *mut L::Acc,
    src: *const u8,
    scale: Scale,
    len: usize,
) {
    for i in 0..len {
        // SAFETY: `i < len`, and both hold `len` elements, of which a group is one. `acc` is
        // aligned, and is read only unless `FIRST`, so where it is initialised. The machine has the
        // lane's instructions. This function requires all of that.
        unsafe {
            let mut x = L::unpack(L::read(src.add(i * L::SIZE)));
            if SCALED {
                x = O::scaled::<L>(x, scale);
            }
            if !FIRST {
                x = O::apply(acc.add(i).read(), x);
            }
            acc.add(i).write(x);
        }
    }
}
