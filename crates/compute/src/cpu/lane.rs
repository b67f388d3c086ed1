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

    /// # Safety
    /// `ptr` must be readable for a group.
    unsafe fn load(ptr: *const u8) -> Self::Acc;

    /// Rounds to the type, and makes NaN canonical.
    ///
    /// # Safety
    /// `ptr` must be writable for a group.
    unsafe fn store(ptr: *mut u8, acc: Self::Acc);

    fn factor(scale: Scale) -> Self::Factor;

    /// The product, rounded to the type.
    fn scale(acc: Self::Acc, factor: Self::Factor) -> Self::Acc;

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
            fn scale(acc: $ty, factor: $ty) -> $ty {
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
            fn scale(acc: $acc, factor: $acc) -> $acc {
                $load($store(acc * factor))
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

/// To nearest, ties to even: half of the last place is added, less the least bit if that makes it
/// even. The carry may run into the exponent, up to infinity, as it should.
#[inline(always)]
fn round_bf16(x: f32) -> bf16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    bf16::from_bits(if x.is_nan() { 0x7fc0 } else { rounded as u16 })
}
