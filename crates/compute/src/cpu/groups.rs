//! The loops over groups of elements, by intrinsics.

use super::arithmetic::Arithmetic;
use super::kernel::{Op, is_plain};
use super::lane::Lane;
use crate::{Job, Operand};

/// Two sources into one destination.
///
/// # Safety
/// Sources and destination must hold `len` elements, and overlap not at all or entirely.
#[inline(always)]
pub(super) unsafe fn pair<L: Lane, O: Op>(dst: *mut u8, a: *const u8, b: *const u8, len: usize) {
    // SAFETY: passed on from the caller: the three parts make up `len`.
    unsafe {
        let done = whole::<L::Tile, O>(dst, a, b, 0, len);
        let done = whole::<L, O>(dst, a, b, done, len);
        if done < len {
            let (at, rest) = (done * L::SIZE, len - done);
            let (a, b) = (L::read_part(a.add(at), rest), L::read_part(b.add(at), rest));
            L::write_part(dst.add(at), L::combine::<O>(a, b), rest);
        }
    }
}

/// As many groups as there are between two elements. Returns where they end.
///
/// # Safety
/// As for [`pair`].
#[inline(always)]
unsafe fn whole<L: Lane, O: Op>(
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    mut first: usize,
    last: usize,
) -> usize {
    while last - first >= L::WIDTH {
        let at = first * L::SIZE;
        // SAFETY: the group lies before `last`.
        unsafe {
            let packed = L::combine::<O>(L::read(a.add(at)), L::read(b.add(at)));
            L::write(dst.add(at), packed);
        }
        first += L::WIDTH;
    }
    first
}

/// The general case: any number of sources, with factors, and of destinations. The results of a
/// group are written after all its sources are read.
///
/// # Safety
/// As for [`kernel::reduce`](super::kernel::reduce).
#[inline(always)]
pub(super) unsafe fn many<L: Lane, O: Op>(job: &Job<'_>, from: usize) {
    let mut first = 0;
    // SAFETY: the groups lie within the operands.
    unsafe {
        while job.count - first >= L::Tile::WIDTH {
            group::<L::Tile, O>(job, from, first, L::Tile::WIDTH);
            first += L::Tile::WIDTH;
        }
        while job.count - first >= L::WIDTH {
            group::<L, O>(job, from, first, L::WIDTH);
            first += L::WIDTH;
        }
        if first < job.count {
            group::<L, O>(job, from, first, job.count - first);
        }
    }
}

/// `len` elements, a group or less.
///
/// # Safety
/// As for [`kernel::reduce`](super::kernel::reduce), for the elements from `first` on.
#[inline(always)]
unsafe fn group<L: Lane, O: Op>(job: &Job<'_>, from: usize, first: usize, len: usize) {
    let at = first * L::SIZE;
    // SAFETY: passed on from the caller.
    unsafe {
        let packed = match job.srcs {
            [] => return,
            [a, b] if is_plain(a) && is_plain(b) => {
                L::combine::<O>(read::<L>(a, from + at, len), read::<L>(b, from + at, len))
            }
            [head, tail @ ..] => {
                let mut acc = operand::<L>(head, from + at, len);
                for src in tail {
                    acc = O::apply(acc, operand::<L>(src, from + at, len));
                }
                O::pack::<L>(acc)
            }
        };
        for dst in job.dsts {
            if len == L::WIDTH {
                L::write(dst.add(at), packed);
            } else {
                L::write_part(dst.add(at), packed, len);
            }
        }
    }
}

/// # Safety
/// As for [`read`].
#[inline(always)]
unsafe fn operand<L: Lane>(src: &Operand, at: usize, len: usize) -> L::Acc {
    // SAFETY: passed on from the caller.
    let acc = L::unpack(unsafe { read::<L>(src, at, len) });
    if is_plain(src) {
        acc
    } else {
        L::unpack(L::pack(acc.times(L::Acc::factor(src.scale))))
    }
}

/// # Safety
/// The source must be readable for `len` elements, a group or less, at the offset.
#[inline(always)]
unsafe fn read<L: Lane>(src: &Operand, at: usize, len: usize) -> L::Packed {
    // SAFETY: passed on from the caller.
    unsafe {
        if len == L::WIDTH {
            L::read(src.ptr.add(at))
        } else {
            L::read_part(src.ptr.add(at), len)
        }
    }
}
