//! Loops over groups of elements, for lanes that use intrinsics.

use super::arithmetic::Arithmetic;
use super::lane::{Lane, Op};
use crate::Operand;

/// Reduces two sources into one destination.
///
/// # Safety
/// Sources and destination must hold `len` elements, and overlap not at all or entirely. `L` must
/// be a lane of the job's type, not a tile, and the machine must have its instructions.
#[inline(always)]
pub(super) unsafe fn pair<L: Lane, O: Op>(dst: *mut u8, a: *const u8, b: *const u8, len: usize) {
    // SAFETY: the caller vouches for `len` elements of all operands and for the lane's
    // instructions, and the three parts add up to `len`. The last is less than a group of `L`,
    // which is a lane and not a tile.
    unsafe {
        let done = whole_groups::<L::Tile, O>(dst, a, b, 0, len);
        let done = whole_groups::<L, O>(dst, a, b, done, len);
        if done < len {
            let (at, rest) = (done * L::SIZE, len - done);
            let (a, b) = (L::read_part(a.add(at), rest), L::read_part(b.add(at), rest));
            L::write_part(dst.add(at), L::combine::<O>(a, b), rest);
        }
    }
}

/// Reduces whole groups, as many as lie between two elements. Returns the element after them.
///
/// # Safety
/// Sources and destination must hold `last` elements, and overlap not at all or entirely; `first`
/// must not exceed `last`. `L` may be a tile. The machine must have the lane's instructions.
#[inline(always)]
unsafe fn whole_groups<L: Lane, O: Op>(
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    mut first: usize,
    last: usize,
) -> usize {
    while last - first >= L::WIDTH {
        let at = first * L::SIZE;
        // SAFETY: the caller vouches for the elements before `last` and for the lane's
        // instructions, and the group ends at `last` or earlier.
        unsafe {
            let packed = L::combine::<O>(L::read(a.add(at)), L::read(b.add(at)));
            L::write(dst.add(at), packed);
        }
        first += L::WIDTH;
    }
    first
}

/// The general case: any number of sources, with factors. A group is written after all sources of
/// it have been read.
///
/// # Safety
/// The sources must hold `len` elements from `from` bytes on, and the destination as many; they may
/// be the same, but must not overlap partly. There must be a source. `L` must be a lane of the
/// job's type, not a tile, and the machine must have its instructions.
#[inline(always)]
pub(super) unsafe fn many<L: Lane, O: Op>(dst: *mut u8, srcs: &[Operand], from: usize, len: usize) {
    let mut first = 0;
    // SAFETY: the caller vouches for `len` elements of all operands and for the lane's
    // instructions. All groups lie within them; the last part is less than a group of `L`.
    unsafe {
        while len - first >= L::Tile::WIDTH {
            let at = first * L::SIZE;
            let acc = fold::<L::Tile, O>(srcs, from + at, L::Tile::WIDTH);
            L::Tile::write(dst.add(at), acc);
            first += L::Tile::WIDTH;
        }
        while len - first >= L::WIDTH {
            let at = first * L::SIZE;
            L::write(dst.add(at), fold::<L, O>(srcs, from + at, L::WIDTH));
            first += L::WIDTH;
        }
        if first < len {
            let (at, rest) = (first * L::SIZE, len - first);
            L::write_part(dst.add(at), fold::<L, O>(srcs, from + at, rest), rest);
        }
    }
}

/// Combines one group of all sources.
///
/// # Safety
/// There must be a source, and all must hold `len` elements, a group or less, at the offset. The
/// machine must have the lane's instructions.
#[inline(always)]
unsafe fn fold<L: Lane, O: Op>(srcs: &[Operand], at: usize, len: usize) -> L::Packed {
    // SAFETY: the caller ensures that there is a source, that each holds `len` elements at the
    // offset, and that the machine has the lane's instructions.
    unsafe {
        let mut acc = operand::<L>(srcs.get_unchecked(0), at, len);
        for src in srcs.get_unchecked(1..) {
            acc = O::apply(acc, operand::<L>(src, at, len));
        }
        O::pack::<L>(acc)
    }
}

/// # Safety
/// The source must hold `len` elements, a group or less, at the offset. The machine must have the
/// lane's instructions.
#[inline(always)]
unsafe fn operand<L: Lane>(src: &Operand, at: usize, len: usize) -> L::Acc {
    // SAFETY: the caller vouches for `len` elements at the offset and for the lane's instructions.
    // Only those are read: all of a group, or a part where there is less than one.
    let packed = unsafe {
        if len == L::WIDTH {
            L::read(src.ptr.add(at))
        } else {
            L::read_part(src.ptr.add(at), len)
        }
    };
    let acc = L::unpack(packed);
    if src.is_plain() {
        acc
    } else {
        L::unpack(L::pack(acc.times(L::Acc::factor(src.scale))))
    }
}
