//! The 8-bit floats of the Open Compute Project's "OFP8" specification.

use std::fmt;

use bytemuck::{Pod, Zeroable};

use crate::small_float::{Shape, narrow, widen};

/// 4 exponent and 3 mantissa bits, no infinities, one NaN per sign; the largest value is 448.
///
/// Conversion rounds to nearest, ties to even, and does not saturate: values that round to more
/// than 448, infinity and NaN all become the NaN `0x7f`.
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct F8E4M3(u8);

/// 5 exponent and 2 mantissa bits, with infinities; the largest finite value is 57344.
///
/// Conversion rounds to nearest, ties to even, and does not saturate: values that round to more
/// than 57344 become infinity. NaN becomes `0x7f`.
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct F8E5M2(u8);

impl Shape for F8E4M3 {
    const MAN: u32 = 3;
    const BIAS: u32 = 7;
    const SIGN: u32 = 0x80;
    const OVERFLOW: u32 = 0x7f;
    const SPECIAL: u32 = 0x7f;
    const NAN: u32 = 0x7f;
}

impl Shape for F8E5M2 {
    const MAN: u32 = 2;
    const BIAS: u32 = 15;
    const SIGN: u32 = 0x80;
    const OVERFLOW: u32 = 0x7c;
    const SPECIAL: u32 = 0x7c;
    const NAN: u32 = 0x7f;
}

macro_rules! float8 {
    ($($ty:ident)*) => {$(
        impl $ty {
            /// The value with these bits.
            #[inline]
            pub const fn from_bits(bits: u8) -> Self {
                Self(bits)
            }

            /// Its bits.
            #[inline]
            pub const fn to_bits(self) -> u8 {
                self.0
            }

            /// The nearest value; see the type for overflow and NaN.
            #[inline(always)]
            pub fn from_f32(value: f32) -> Self {
                Self(narrow::<Self>(value) as u8)
            }

            /// The same value as f32. NaN stays NaN, with unspecified sign and payload.
            #[inline(always)]
            pub fn to_f32(self) -> f32 {
                widen::<Self>(u32::from(self.0))
            }
        }

        impl From<f32> for $ty {
            fn from(value: f32) -> Self {
                Self::from_f32(value)
            }
        }

        impl From<$ty> for f32 {
            fn from(value: $ty) -> Self {
                value.to_f32()
            }
        }

        /// NaN equals nothing, and the two zeros are equal, as in all floats.
        impl PartialEq for $ty {
            fn eq(&self, other: &Self) -> bool {
                self.to_f32() == other.to_f32()
            }
        }

        impl PartialOrd for $ty {
            fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
                self.to_f32().partial_cmp(&other.to_f32())
            }
        }

        impl fmt::Debug for $ty {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.to_f32(), f)
            }
        }

        impl fmt::Display for $ty {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.to_f32(), f)
            }
        }
    )*};
}

float8! { F8E4M3 F8E5M2 }

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of a byte by the specification's formula, in f64.
    fn value(byte: u8, man: i32, bias: i32) -> f64 {
        let exponent = i32::from(byte & 0x7f) >> man;
        let fraction = f64::from(byte & ((1 << man) - 1)) / f64::from(1 << man);
        let magnitude = if exponent == 0 {
            fraction * 2f64.powi(1 - bias)
        } else {
            (1.0 + fraction) * 2f64.powi(exponent - bias)
        };
        if byte & 0x80 == 0 {
            magnitude
        } else {
            -magnitude
        }
    }

    fn e4m3(byte: u8) -> f64 {
        if byte & 0x7f == 0x7f {
            f64::NAN
        } else {
            value(byte, 3, 7)
        }
    }

    fn e5m2(byte: u8) -> f64 {
        match byte {
            0x7c => f64::INFINITY,
            0xfc => f64::NEG_INFINITY,
            _ if byte & 0x7f > 0x7c => f64::NAN,
            _ => value(byte, 2, 15),
        }
    }

    #[test]
    fn every_byte_widens_to_its_value() {
        for byte in 0..=u8::MAX {
            let pairs = [
                (f64::from(F8E4M3::from_bits(byte).to_f32()), e4m3(byte)),
                (f64::from(F8E5M2::from_bits(byte).to_f32()), e5m2(byte)),
            ];
            for (seen, expected) in pairs {
                let same = seen.to_bits() == expected.to_bits();
                assert!(
                    same || (seen.is_nan() && expected.is_nan()),
                    "{byte:#x}: {seen}"
                );
            }
        }
    }

    /// Rounds by searching for the nearest magnitude. `overflow` stands for the value after the
    /// largest finite one.
    fn nearest(x: f32, table: &dyn Fn(u8) -> f64, overflow: u8, step: f64) -> u8 {
        if x.is_nan() {
            return 0x7f;
        }
        let magnitude = f64::from(x.abs());
        let distance = |byte: u8| {
            let candidate = if byte == overflow {
                table(overflow - 1) + step
            } else {
                table(byte)
            };
            (candidate - magnitude).abs()
        };
        let best = if magnitude > 1e6 {
            overflow
        } else {
            // Among equals, the even one: ties are always between neighbours.
            (0..=overflow)
                .min_by(|&a, &b| {
                    distance(a)
                        .total_cmp(&distance(b))
                        .then((a & 1).cmp(&(b & 1)))
                })
                .unwrap()
        };
        let sign = u8::from(x.is_sign_negative()) << 7;
        // e4m3 has no infinity: overflow is the NaN, which has one form.
        if best == 0x7f { 0x7f } else { best | sign }
    }

    #[test]
    fn rounding_matches_a_search_for_the_nearest() {
        let mut samples: Vec<u32> = (0..=u32::MAX).step_by(1_299_709).collect();
        for byte in 0..u8::MAX {
            for table in [e4m3 as fn(u8) -> f64, e5m2] {
                let middle = f64::midpoint(table(byte), table(byte + 1)) as f32;
                for value in [middle, table(byte) as f32] {
                    let bits = value.to_bits();
                    samples.extend([bits.wrapping_sub(1), bits, bits.wrapping_add(1)]);
                }
            }
        }
        // The thresholds of overflow.
        for value in [464f32, 480.0, 61440.0, 65536.0, f32::INFINITY] {
            let bits = value.to_bits();
            samples.extend([bits - 1, bits, bits + 1, bits | 1 << 31]);
        }
        for bits in samples {
            let x = f32::from_bits(bits);
            assert_eq!(
                F8E4M3::from(x).to_bits(),
                nearest(x, &e4m3, 0x7f, 32.0),
                "e4m3 of {x}"
            );
            assert_eq!(
                F8E5M2::from(x).to_bits(),
                nearest(x, &e5m2, 0x7c, 8192.0),
                "e5m2 of {x}"
            );
        }
    }

    #[test]
    fn overflow_does_not_saturate() {
        assert_eq!(F8E4M3::from(464.0), F8E4M3::from(448.0));
        assert!(F8E4M3::from(464.1).to_f32().is_nan());
        assert!(F8E4M3::from(f32::NEG_INFINITY).to_f32().is_nan());
        assert_eq!(F8E5M2::from(-61439.0), F8E5M2::from(-57344.0));
        assert_eq!(F8E5M2::from(-61440.0).to_bits(), 0xfc);
    }
}
