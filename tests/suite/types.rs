//! The element types.

use std::fmt::Debug;

use bytemuck::Zeroable;
use spark_ccl::{Element, F8E4M3, F8E5M2, bf16, f16};

/// The model's view of a type.
pub(crate) trait Number: Element + Zeroable + Debug {
    /// The largest contribution of a rank with which eight ranks' sum is exact.
    const LIMIT: i64;
    /// Whether there are negative numbers.
    const SIGNED: bool = true;
    /// The distance from 1 to the next number; 0 for integers.
    const EPSILON: f64 = 0.0;
    /// The number, wrapped for integers.
    fn of(value: i64) -> Self;
    fn to_f64(self) -> f64;
}

macro_rules! integers {
    ($($type:ident $limit:literal $signed:literal,)+) => {$(
        impl Number for $type {
            const LIMIT: i64 = $limit;
            const SIGNED: bool = $signed;
            fn of(value: i64) -> Self {
                value as Self
            }
            #[allow(clippy::cast_lossless)]
            fn to_f64(self) -> f64 {
                self as f64
            }
        }
    )+};
}

integers! {
    i8 15 true,
    u8 31 false,
    i32 1_000_000 true,
    u32 1_000_000 false,
    i64 1_000_000_000 true,
    u64 1_000_000_000 false,
}

macro_rules! floats {
    ($($type:ident $limit:literal $epsilon:literal $of:expr, $to:expr;)+) => {$(
        impl Number for $type {
            const LIMIT: i64 = $limit;
            const EPSILON: f64 = $epsilon;
            fn of(value: i64) -> Self {
                $of(value as f32)
            }
            fn to_f64(self) -> f64 {
                $to(self)
            }
        }
    )+};
}

floats! {
    f64 1_000_000 2.3e-16 f64::from, f64::from;
    f32 1_000_000 1.2e-7 f32::from, f64::from;
    f16 128 9.8e-4 f16::from_f32, f64::from;
    bf16 16 7.9e-3 bf16::from_f32, f64::from;
    F8E4M3 2 0.125 F8E4M3::from_f32, |x: F8E4M3| f64::from(x.to_f32());
    F8E5M2 1 0.25 F8E5M2::from_f32, |x: F8E5M2| f64::from(x.to_f32());
}

/// Runs the expression once for each element type, as `T`.
macro_rules! for_every_type {
    ($type:ident => $body:expr) => {{
        for_every_type!(@ $type $body; i8 u8 i32 u32 i64 u64 f16 f32 f64 bf16 F8E4M3 F8E5M2)
    }};
    (@ $type:ident $body:expr; $($each:ident)+) => {{
        $({
            type $type = $each;
            $body
        })+
    }};
}
pub(crate) use for_every_type;
