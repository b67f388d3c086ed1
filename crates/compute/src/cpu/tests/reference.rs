//! The expected results of the kernels, computed without their code.

use half::{bf16, f16};
use spark_ccl_types::{Combine, Element, F8E4M3, F8E5M2, Scale};

/// What the tests need to know about a type.
pub(super) trait Reference: Element {
    /// Combines operands with their factors, in order. Each product is rounded, unless it is added
    /// or multiplied and its factor says otherwise.
    fn combine(op: Combine, operands: impl Iterator<Item = (Self, Scale)>) -> Self;
    /// A value made from random bits: either arbitrary bits or a small number.
    fn sample(bits: u64) -> Self;
}

macro_rules! integer_reference {
    ($($ty:ty)*) => {$(
        impl Reference for $ty {
            fn combine(op: Combine, operands: impl Iterator<Item = (Self, Scale)>) -> Self {
                let values = operands.map(|(x, scale)| match scale {
                    Scale::One => x,
                    Scale::Int(factor) => x.wrapping_mul(factor as $ty),
                    Scale::Float(factor) | Scale::Unrounded(factor) => {
                        x.wrapping_mul(factor.trunc() as i64 as $ty)
                    }
                });
                let f = match op {
                    Combine::Sum => <$ty>::wrapping_add,
                    Combine::Prod => <$ty>::wrapping_mul,
                    Combine::Max => <$ty>::max,
                    Combine::Min => <$ty>::min,
                };
                values.reduce(f).unwrap()
            }

            fn sample(bits: u64) -> Self {
                if bits % 2 == 0 { (bits >> 1) as $ty } else { ((bits >> 1) % 8) as $ty }
            }
        }
    )*};
}

integer_reference! { i8 u8 i32 u32 i64 u64 }

/// Float types: computed in `$wide`, rounded by `$round`, with the bits `$nan` for NaN.
macro_rules! float_reference {
    ($($ty:ty, $bits:ty, $wide:ty, $nan:expr, $round:expr, $widen:expr;)*) => {$(
        impl Reference for $ty {
            fn combine(op: Combine, operands: impl Iterator<Item = (Self, Scale)>) -> Self {
                let mut operands = operands.peekable();
                let first = operands.next().unwrap();
                if operands.peek().is_none() && first.1 == Scale::One {
                    return first.0;
                }
                let value = |(x, scale): (Self, Scale)| {
                    let x: $wide = $widen(x);
                    match scale {
                        Scale::One => x,
                        Scale::Unrounded(factor) if matches!(op, Combine::Sum | Combine::Prod) => {
                            x * factor as $wide
                        }
                        Scale::Float(factor) | Scale::Unrounded(factor) => {
                            $widen(Self::canonical(x * factor as $wide))
                        }
                        Scale::Int(factor) => {
                            $widen(Self::canonical(x * factor as f64 as $wide))
                        }
                    }
                };
                let result = operands.map(value).fold(value(first), |a: $wide, b: $wide| {
                    match op {
                        Combine::Sum => a + b,
                        Combine::Prod => a * b,
                        _ if a.is_nan() || b.is_nan() => <$wide>::NAN,
                        // The total order puts -0 before +0.
                        Combine::Max if a.total_cmp(&b).is_gt() => a,
                        Combine::Min if a.total_cmp(&b).is_lt() => a,
                        Combine::Max | Combine::Min => b,
                    }
                });
                Self::canonical(result)
            }

            fn sample(bits: u64) -> Self {
                if bits.is_multiple_of(4) {
                    <$ty>::from_bits((bits >> 2) as $bits)
                } else {
                    let small = ((bits >> 2) % 33) as $wide / 4.0 - 4.0;
                    $round(if bits % 4 == 1 { -small * 0.0 } else { small })
                }
            }
        }

        impl Canonical<$wide> for $ty {
            fn canonical(wide: $wide) -> Self {
                if wide.is_nan() { <$ty>::from_bits($nan) } else { $round(wide) }
            }
        }
    )*};
}

trait Canonical<W> {
    fn canonical(wide: W) -> Self;
}

float_reference! {
    f32, u32, f32, 0x7fc0_0000, |x| x, |x| x;
    f64, u64, f64, 0x7ff8_0000_0000_0000, |x| x, |x| x;
    f16, u16, f32, 0x7e00, f16::from_f32, f16::to_f32;
    bf16, u16, f32, 0x7fc0, bf16::from_f32, bf16::to_f32;
    // Their conversions have their own reference in `float8`.
    F8E4M3, u8, f32, 0x7f, F8E4M3::from_f32, F8E4M3::to_f32;
    F8E5M2, u8, f32, 0x7f, F8E5M2::from_f32, F8E5M2::to_f32;
}
