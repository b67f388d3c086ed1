//! Loops over groups of elements, for lanes that use intrinsics.

use super::lane::{Lane, Op};
use crate::Operand;

/// Reduces two sources into one destination.
///
/// # Safety
/// Sources and destination must hold `len` elements, and overlap not at all or entirely. `L` must
/// be a lane of the job's type, not a tile, and the machine must have its instructions.
#[inline(always)]
pub(super) unsafe fn pair<L: Lane, O: Op>(dst: *mut u8, a: *const u8, b: *const u8, len: usize) {
    // SAFETY: all operands hold `len` elements, and overlap not at all or entirely; the three parts
    // add up to `len`. The last is less than a group of `L`, which is no tile, as `read_part` and
    // `write_part` require. The machine has the lane's instructions, which are also its tile's.
    // Operands, lane and machine are as this function requires.
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
        // SAFETY: all operands hold `last` elements, and this group ends at `last` or earlier
        // (`last - first` is a group or more), so it may be read and written. The machine has the
        // lane's instructions. This function requires the operands and the machine.
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
    // SAFETY: there is a source; sources, `from` bytes on, and destination hold `len` elements. A
    // group is only processed where as many are left. The last part is less than a group of `L`,
    // which is no tile, as `fold` and `write_part` require. The machine has the lane's
    // instructions, which are also its tile's. Operands, lane and machine are as this function
    // requires.
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
/// There must be a source, and all must hold `len` elements at the offset: a group, or less if `L`
/// is not a tile. The machine must have the lane's instructions.
#[inline(always)]
unsafe fn fold<L: Lane, O: Op>(srcs: &[Operand], at: usize, len: usize) -> L::Packed {
    // SAFETY: there is a source, so both indices are within `srcs`. Each holds `len` elements at
    // the offset, a group, or less where `L` is no tile, and the machine has the lane's
    // instructions: this function requires all that `operand` requires.
    unsafe {
        let mut acc = operand::<L, O>(srcs.get_unchecked(0), at, len);
        for src in srcs.get_unchecked(1..) {
            acc = O::apply(acc, operand::<L, O>(src, at, len));
        }
        O::pack::<L>(acc)
    }
}

/// # Safety
/// The source must hold `len` elements at the offset: a group, or less if `L` is not a tile. The
/// machine must have the lane's instructions.
#[inline(always)]
unsafe fn operand<L: Lane, O: Op>(src: &Operand, at: usize, len: usize) -> L::Acc {
    // SAFETY: the source holds `len` elements at the offset, and only those are read: all of a
    // group, or a part where there is less than one, and then `L` is no tile. The machine has the
    // lane's instructions. This function requires all of that.
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
        O::scaled::<L>(acc, src.scale)
    }
}
