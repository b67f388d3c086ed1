//! The expected results of the kernels, computed without their code.

use half::{bf16, f16};
use spark_ccl_types::{Combine, Element, F8E4M3, F8E5M2, Scale};

/// What the tests need to know about a type.
pub(super) trait Reference: Element {
    fn combine(op: Combine, values: impl Iterator<Item = Self>) -> Self;
    fn scaled(self, scale: Scale) -> Self;
    /// A value made from random bits: either arbitrary bits or a small number.
    fn sample(bits: u64) -> Self;
}

macro_rules! integer_reference {
    ($($ty:ty)*) => {$(
        impl Reference for $ty {
            fn combine(op: Combine, values: impl Iterator<Item = Self>) -> Self {
                let f = match op {
                    Combine::Sum => <$ty>::wrapping_add,
                    Combine::Prod => <$ty>::wrapping_mul,
                    Combine::Max => <$ty>::max,
                    Combine::Min => <$ty>::min,
                };
                values.reduce(f).unwrap()
            }

            fn scaled(self, scale: Scale) -> Self {
                match scale {
                    Scale::One => self,
                    Scale::Int(x) => self.wrapping_mul(x as $ty),
                    Scale::Float(x) => self.wrapping_mul(x.trunc() as i64 as $ty),
                }
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
            fn combine(op: Combine, values: impl Iterator<Item = Self>) -> Self {
                let mut values = values.peekable();
                let first = values.next().unwrap();
                if values.peek().is_none() {
                    return first;
                }
                let result = values.map($widen).fold($widen(first), |a: $wide, b: $wide| {
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

            fn scaled(self, scale: Scale) -> Self {
                let factor = match scale {
                    Scale::One => return self,
                    Scale::Float(x) => x as $wide,
                    Scale::Int(x) => x as f64 as $wide,
                };
                Self::canonical($widen(self) * factor)
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
