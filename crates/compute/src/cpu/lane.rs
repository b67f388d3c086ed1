//! How elements are loaded, converted and stored: the part of a kernel that depends on the type.

use std::marker::PhantomData;
use std::ptr;

use half::{bf16, f16};
use spark_ccl_types::small_float::{Half, narrow, widen};
use spark_ccl_types::{Combine, F8E4M3, F8E5M2, Scale};

use super::arithmetic::{Arithmetic, each};

/// A group of adjacent elements that a kernel handles at once.
///
/// A type that needs no intrinsics has groups of one element, which LLVM vectorizes. All methods
/// are `inline(always)`, so that they are compiled with the instructions of the kernel that calls
/// them. Some lanes' safe methods use instructions beyond the baseline: they may be called only
/// from a kernel that is compiled for those.
pub(super) trait Lane: Sized {
    /// Elements in a group.
    const WIDTH: usize;
    /// Bytes of an element.
    const SIZE: usize;
    /// A group as it is stored in memory.
    type Packed: Copy;
    /// A group as it is used in computations.
    type Acc: Arithmetic;
    /// Several groups, to be held in registers while many sources are read. The lane itself, if a
    /// group is one element.
    type Tile: Lane;

    /// # Safety
    /// `ptr` must be readable for a group, and the machine must have the lane's instructions.
    unsafe fn read(ptr: *const u8) -> Self::Packed;

    /// # Safety
    /// `ptr` must be writable for a group, and the machine must have the lane's instructions.
    unsafe fn write(ptr: *mut u8, packed: Self::Packed);

    fn unpack(packed: Self::Packed) -> Self::Acc;

    /// Rounds to the type, and makes NaN canonical.
    fn pack(acc: Self::Acc) -> Self::Packed;

    /// Packs values that were unpacked, or are the canonical NaN: these need no rounding.
    #[inline(always)]
    fn pack_exact(acc: Self::Acc) -> Self::Packed {
        Self::pack(acc)
    }

    /// `a op b`, rounded.
    #[inline(always)]
    fn combine<O: Op>(a: Self::Packed, b: Self::Packed) -> Self::Packed {
        O::pack::<Self>(O::apply(Self::unpack(a), Self::unpack(b)))
    }

    /// Reads `len` elements; the rest of the group is unspecified.
    ///
    /// # Safety
    /// `ptr` must be readable for `len` elements, less than a group, which has at most 64 bytes:
    /// the lane must not be a [`Tile`]. The machine must have the lane's instructions.
    #[inline(always)]
    unsafe fn read_part(ptr: *const u8, len: usize) -> Self::Packed {
        let mut group = Group([0; 64]);
        // SAFETY: `ptr` is readable for `len` elements, less than a group, which has at most 64
        // bytes, and the machine has the lane's instructions: this function requires that. So the
        // elements fit into the buffer, and the buffer, all of it initialised, holds a group.
        unsafe {
            ptr::copy_nonoverlapping(ptr, group.0.as_mut_ptr(), len * Self::SIZE);
            Self::read(group.0.as_ptr())
        }
    }

    /// Writes the first `len` elements.
    ///
    /// # Safety
    /// `ptr` must be writable for `len` elements, less than a group, which has at most 64 bytes:
    /// the lane must not be a [`Tile`]. The machine must have the lane's instructions.
    #[inline(always)]
    unsafe fn write_part(ptr: *mut u8, packed: Self::Packed, len: usize) {
        let mut group = Group([0; 64]);
        // SAFETY: `ptr` is writable for `len` elements, less than a group, which has at most 64
        // bytes, and the machine has the lane's instructions: this function requires that. So the
        // buffer has room for the group, and initialised bytes for the elements.
        unsafe {
            Self::write(group.0.as_mut_ptr(), packed);
            ptr::copy_nonoverlapping(group.0.as_ptr(), ptr, len * Self::SIZE);
        }
    }
}

/// An elementwise operation as a type.
pub(super) trait Op {
    const NAME: Combine;

    /// `x` times a factor, which is not 1.
    #[inline(always)]
    fn scaled<L: Lane>(x: L::Acc, scale: Scale) -> L::Acc {
        let product = x.times(L::Acc::factor(scale));
        match (Self::NAME, scale) {
            (Combine::Sum | Combine::Prod, Scale::Unrounded(_)) => product,
            // Packing the larger one of two rounds nothing.
            _ => L::unpack(L::pack(product)),
        }
    }

    /// `a op b`.
    #[inline(always)]
    fn apply<A: Arithmetic>(a: A, b: A) -> A {
        match Self::NAME {
            Combine::Sum => a.sum(b),
            Combine::Prod => a.prod(b),
            Combine::Max => a.max(b),
            Combine::Min => a.min(b),
        }
    }

    /// Packs a result.
    #[inline(always)]
    fn pack<L: Lane>(acc: L::Acc) -> L::Packed {
        match Self::NAME {
            Combine::Sum | Combine::Prod => L::pack(acc),
            Combine::Max | Combine::Min => L::pack_exact(acc),
        }
    }
}

macro_rules! ops {
    ($($op:ident)*) => {$(
        pub(super) struct $op;

        impl Op for $op {
            const NAME: Combine = Combine::$op;
        }
    )*};
}

ops! { Sum Prod Max Min }

/// Space for the largest group that is not a tile.
#[repr(align(64))]
struct Group([u8; 64]);

/// Types whose elements are handled one by one: the type in which they are computed, and the
/// conversions.
macro_rules! lanes {
    ($($ty:ty, $acc:ty: $unpack:expr, $pack:expr;)*) => {$(
        impl Lane for $ty {
            const WIDTH: usize = 1;
            const SIZE: usize = size_of::<$ty>();
            type Packed = $ty;
            type Acc = $acc;
            type Tile = Self;

            #[inline(always)]
            unsafe fn read(ptr: *const u8) -> $ty {
                // SAFETY: `ptr` is readable for a group, as this function requires, which is one
                // element. Any bits are a value of these types, and the access needs no alignment.
                unsafe { ptr.cast::<$ty>().read_unaligned() }
            }

            #[inline(always)]
            unsafe fn write(ptr: *mut u8, packed: $ty) {
                // SAFETY: `ptr` is writable for a group, as this function requires, which is one
                // element. The access needs no alignment.
                unsafe { ptr.cast::<$ty>().write_unaligned(packed) }
            }

            #[inline(always)]
            fn unpack(packed: $ty) -> $acc {
                $unpack(packed)
            }

            #[inline(always)]
            fn pack(acc: $acc) -> $ty {
                $pack(acc)
            }
        }
    )*};
}

lanes! {
    i8, i8: |x| x, |x| x;
    u8, u8: |x| x, |x| x;
    i32, i32: |x| x, |x| x;
    u32, u32: |x| x, |x| x;
    i64, i64: |x| x, |x| x;
    u64, u64: |x| x, |x| x;
    f32, f32: |x| x, canonical_f32;
    f64, f64: |x| x, canonical_f64;
    f16, f32:
        |x: f16| widen::<Half>(u32::from(x.to_bits())),
        |x| f16::from_bits(narrow::<Half>(x) as u16);
    bf16, f32: |x: bf16| f32::from_bits(u32::from(x.to_bits()) << 16), round_bf16;
    F8E4M3, f32: F8E4M3::to_f32, F8E4M3::from_f32;
    F8E5M2, f32: F8E5M2::to_f32, F8E5M2::from_f32;
}

/// `N` groups as one.
pub(super) struct Tile<L, const N: usize>(PhantomData<L>);

impl<L: Lane, const N: usize> Lane for Tile<L, N> {
    const WIDTH: usize = N * L::WIDTH;
    const SIZE: usize = L::SIZE;
    type Packed = [L::Packed; N];
    type Acc = [L::Acc; N];
    type Tile = Self;

    #[inline(always)]
    unsafe fn read(ptr: *const u8) -> Self::Packed {
        // SAFETY: `ptr` is readable for a group of the tile, which is `N` groups of `L`, of which
        // this is group `i`, and the machine has the instructions: this function requires both.
        each!(i => unsafe { L::read(ptr.add(i * L::WIDTH * L::SIZE)) })
    }

    #[inline(always)]
    unsafe fn write(ptr: *mut u8, packed: Self::Packed) {
        for (i, packed) in packed.into_iter().enumerate() {
            // SAFETY: `ptr` is writable for a group of the tile, which is `N` groups of `L`, of
            // which this is group `i`, and the machine has the instructions: this function requires
            // both.
            unsafe { L::write(ptr.add(i * L::WIDTH * L::SIZE), packed) };
        }
    }

    #[inline(always)]
    fn unpack(packed: Self::Packed) -> Self::Acc {
        each!(i => L::unpack(packed[i]))
    }

    #[inline(always)]
    fn pack(acc: Self::Acc) -> Self::Packed {
        each!(i => L::pack(acc[i]))
    }

    #[inline(always)]
    fn pack_exact(acc: Self::Acc) -> Self::Packed {
        each!(i => L::pack_exact(acc[i]))
    }
}

#[inline(always)]
fn canonical_f32(x: f32) -> f32 {
    if x.is_nan() {
        f32::from_bits(0x7fc0_0000)
    } else {
        x
    }
}

#[inline(always)]
fn canonical_f64(x: f64) -> f64 {
    if x.is_nan() {
        f64::from_bits(0x7ff8_0000_0000_0000)
    } else {
        x
    }
}

/// Rounds to nearest, ties to even, by the upper half of the bits. It adds half of the last place,
/// minus the lowest bit unless the result would then be odd. The carry may reach the exponent, up
/// to infinity, which is correct.
#[inline(always)]
fn round_bf16(x: f32) -> bf16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    let canonical = if x.is_nan() { 0x7fc0_0000 } else { rounded };
    bf16::from_bits((canonical >> 16) as u16)
}
