//! How elements are loaded, combined and stored: the part of a kernel that depends on the type.

use half::{bf16, f16};

use crate::small_float::{Half, narrow, widen};
use crate::{F8E4M3, F8E5M2, Scale};

/// A group of adjacent elements that a kernel handles at once.
///
/// For most types a group is one element, and LLVM makes vectors of them. Everything is
/// `inline(always)`, to be compiled with the instructions of the kernel around it.
pub(super) trait Lane {
    /// Elements in a group.
    const WIDTH: usize;
    /// Bytes of an element.
    const SIZE: usize;
    /// A group as it is computed with.
    type Acc: Copy;
    /// A factor as it is multiplied with.
    type Factor: Copy;
    /// The same type, one element at a time: for what is left over.
    type Single: Lane;
    /// The same type, for accumulators in memory; at most as wide.
    type Blocked: Lane;

    /// # Safety
    /// `ptr` must be readable for a group.
    unsafe fn load(ptr: *const u8) -> Self::Acc;

    /// Rounds to the type, and makes NaN canonical.
    ///
    /// # Safety
    /// `ptr` must be writable for a group.
    unsafe fn store(ptr: *mut u8, acc: Self::Acc);

    fn factor(scale: Scale) -> Self::Factor;

    /// The product, before it is rounded to the type.
    fn times(acc: Self::Acc, factor: Self::Factor) -> Self::Acc;

    fn sum(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn prod(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn max(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn min(a: Self::Acc, b: Self::Acc) -> Self::Acc;
}

/// A factor for float types.
pub(super) fn float_factor(scale: Scale) -> f64 {
    match scale {
        Scale::One => 1.0,
        Scale::Float(x) => x,
        Scale::Int(x) => x as f64,
    }
}

fn int_factor(scale: Scale) -> u64 {
    match scale {
        Scale::One => 1,
        Scale::Float(x) => x as i64 as u64,
        Scale::Int(x) => x,
    }
}

macro_rules! int_lanes {
    ($($ty:ty)*) => {$(
        impl Lane for $ty {
            const WIDTH: usize = 1;
            const SIZE: usize = size_of::<$ty>();
            type Acc = $ty;
            type Factor = $ty;
            type Single = $ty;
            type Blocked = $ty;

            #[inline(always)]
            unsafe fn load(ptr: *const u8) -> $ty {
                // SAFETY: passed on from the caller.
                unsafe { ptr.cast::<$ty>().read_unaligned() }
            }

            #[inline(always)]
            unsafe fn store(ptr: *mut u8, acc: $ty) {
                // SAFETY: passed on from the caller.
                unsafe { ptr.cast::<$ty>().write_unaligned(acc) }
            }

            #[inline(always)]
            fn factor(scale: Scale) -> $ty {
                int_factor(scale) as $ty
            }

            #[inline(always)]
            fn times(acc: $ty, factor: $ty) -> $ty {
                acc.wrapping_mul(factor)
            }

            #[inline(always)]
            fn sum(a: $ty, b: $ty) -> $ty {
                a.wrapping_add(b)
            }

            #[inline(always)]
            fn prod(a: $ty, b: $ty) -> $ty {
                a.wrapping_mul(b)
            }

            #[inline(always)]
            fn max(a: $ty, b: $ty) -> $ty {
                a.max(b)
            }

            #[inline(always)]
            fn min(a: $ty, b: $ty) -> $ty {
                a.min(b)
            }
        }
    )*};
}

int_lanes! { i8 u8 i32 u32 i64 u64 }

/// The larger or smaller of two floats, whatever their order: for equal operands the zeros decide,
/// whose sign bits `and` clears unless both are set, and `or` sets if one is.
macro_rules! pick {
    ($ty:ty, $a:ident $wins:tt $b:ident, $zeros:tt) => {{
        let equal = <$ty>::from_bits($a.to_bits() $zeros $b.to_bits());
        let one = if $a $wins $b { $a } else { $b };
        let number = if $a == $b { equal } else { one };
        if $a.is_nan() || $b.is_nan() { <$ty>::NAN } else { number }
    }};
}

/// Float types, by the type they are computed in and their conversions from and to it.
macro_rules! float_lanes {
    ($($ty:ty, $acc:ty: $load:expr, $store:expr;)*) => {$(
        impl Lane for $ty {
            const WIDTH: usize = 1;
            const SIZE: usize = size_of::<$ty>();
            type Acc = $acc;
            type Factor = $acc;
            type Single = $ty;
            type Blocked = $ty;

            #[inline(always)]
            unsafe fn load(ptr: *const u8) -> $acc {
                // SAFETY: passed on from the caller; these types allow any bits.
                $load(unsafe { ptr.cast::<$ty>().read_unaligned() })
            }

            #[inline(always)]
            unsafe fn store(ptr: *mut u8, acc: $acc) {
                // SAFETY: passed on from the caller.
                unsafe { ptr.cast::<$ty>().write_unaligned($store(acc)) }
            }

            #[inline(always)]
            fn factor(scale: Scale) -> $acc {
                float_factor(scale) as $acc
            }

            #[inline(always)]
            fn times(acc: $acc, factor: $acc) -> $acc {
                acc * factor
            }

            #[inline(always)]
            fn sum(a: $acc, b: $acc) -> $acc {
                a + b
            }

            #[inline(always)]
            fn prod(a: $acc, b: $acc) -> $acc {
                a * b
            }

            #[inline(always)]
            #[allow(clippy::float_cmp)]
            fn max(a: $acc, b: $acc) -> $acc {
                pick!($acc, a > b, &)
            }

            #[inline(always)]
            #[allow(clippy::float_cmp)]
            fn min(a: $acc, b: $acc) -> $acc {
                pick!($acc, a < b, |)
            }
        }
    )*};
}

float_lanes! {
    f32, f32: |x| x, canonical_f32;
    f64, f64: |x| x, canonical_f64;
    f16, f32:
        |x: f16| widen::<Half>(u32::from(x.to_bits())),
        |x| f16::from_bits(narrow::<Half>(x) as u16);
    bf16, f32: |x: bf16| f32::from_bits(u32::from(x.to_bits()) << 16), round_bf16;
    F8E4M3, f32: F8E4M3::to_f32, F8E4M3::from_f32;
    F8E5M2, f32: F8E5M2::to_f32, F8E5M2::from_f32;
}

/// Two bfloat16 as the halves of one word.
///
/// A vector of such words widens with a shift and a mask, and narrows with a shift and an `or`,
/// all within 32-bit lanes. One at a time, elements would have to move from 16-bit to 32-bit
/// lanes and back, for which machines have a single port. Which element is in which half does not
/// matter, so neither does the byte order.
pub(super) struct Bf16Pair;

impl Lane for Bf16Pair {
    const WIDTH: usize = 2;
    const SIZE: usize = 2;
    type Acc = [f32; 2];
    type Factor = f32;
    type Single = bf16;
    // Pairs in memory would have to be taken apart.
    type Blocked = bf16;

    #[inline(always)]
    unsafe fn load(ptr: *const u8) -> [f32; 2] {
        // SAFETY: passed on from the caller.
        split(unsafe { ptr.cast::<u32>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(ptr: *mut u8, acc: [f32; 2]) {
        // SAFETY: passed on from the caller.
        unsafe { ptr.cast::<u32>().write_unaligned(join(acc)) }
    }

    #[inline(always)]
    fn factor(scale: Scale) -> f32 {
        <bf16 as Lane>::factor(scale)
    }

    #[inline(always)]
    fn times(acc: [f32; 2], factor: f32) -> [f32; 2] {
        acc.map(|x| x * factor)
    }

    #[inline(always)]
    fn sum(a: [f32; 2], b: [f32; 2]) -> [f32; 2] {
        [a[0] + b[0], a[1] + b[1]]
    }

    #[inline(always)]
    fn prod(a: [f32; 2], b: [f32; 2]) -> [f32; 2] {
        [a[0] * b[0], a[1] * b[1]]
    }

    #[inline(always)]
    fn max(a: [f32; 2], b: [f32; 2]) -> [f32; 2] {
        [
            <f32 as Lane>::max(a[0], b[0]),
            <f32 as Lane>::max(a[1], b[1]),
        ]
    }

    #[inline(always)]
    fn min(a: [f32; 2], b: [f32; 2]) -> [f32; 2] {
        [
            <f32 as Lane>::min(a[0], b[0]),
            <f32 as Lane>::min(a[1], b[1]),
        ]
    }
}

#[inline(always)]
fn split(word: u32) -> [f32; 2] {
    [
        f32::from_bits(word << 16),
        f32::from_bits(word & 0xffff_0000),
    ]
}

#[inline(always)]
fn join([low, high]: [f32; 2]) -> u32 {
    round_bf16_bits(low) >> 16 | round_bf16_bits(high) & 0xffff_0000
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

#[inline(always)]
fn round_bf16(x: f32) -> bf16 {
    bf16::from_bits((round_bf16_bits(x) >> 16) as u16)
}

/// To nearest, ties to even, in the upper half: half of the last place is added, less the least
/// bit if that makes it even. The carry may run into the exponent, up to infinity, as it should.
#[inline(always)]
fn round_bf16_bits(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    if x.is_nan() { 0x7fc0_0000 } else { rounded }
}
