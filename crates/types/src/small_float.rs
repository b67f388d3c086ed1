//! Conversions between f32 and floats of at most 16 bits, without branches, so that loops over them
//! vectorise.
//!
//! The bits of a small float are passed in the low bits of a `u32`. [`Shape`] describes a format.

/// A float format with fewer bits than f32.
pub trait Shape {
    /// The number of mantissa bits.
    const MAN: u32;
    /// The exponent's bias.
    const BIAS: u32;
    /// The sign bit; the bits below are the magnitude.
    const SIGN: u32;
    /// The magnitude to which larger ones are clamped after rounding: infinity, or NaN if the
    /// format has no infinity.
    const OVERFLOW: u32;
    /// The smallest magnitude that is infinity or NaN.
    const SPECIAL: u32;
    /// The NaN to which every NaN of f32 is converted, regardless of its sign and payload.
    const NAN: u32;
}

const F32_BIAS: u32 = 127;
const F32_MAN: u32 = 23;
const F32_INFINITY: u32 = 0x7f80_0000;

/// The exact f32 value. NaN stays NaN; its payload and sign are unspecified.
#[inline(always)]
pub fn widen<S: Shape>(bits: u32) -> f32 {
    let magnitude = bits & (S::SIGN - 1);
    let shifted = magnitude << (F32_MAN - S::MAN);
    let normal = shifted + ((F32_BIAS - S::BIAS) << F32_MAN);
    // A subnormal has no implicit leading one: add one to the float's exponent, and subtract its
    // value again.
    let one = (F32_BIAS - S::BIAS + 1) << F32_MAN;
    let subnormal = (f32::from_bits(shifted + one) - f32::from_bits(one)).to_bits();
    let finite = if magnitude < (1 << S::MAN) {
        subnormal
    } else {
        normal
    };
    // In formats without infinity, `SPECIAL` is the only NaN. Its mantissa is not 0, so the result
    // is a NaN, too.
    let wide = if magnitude >= S::SPECIAL {
        shifted | F32_INFINITY
    } else {
        finite
    };
    f32::from_bits(wide | (bits & S::SIGN) << (31 - S::SIGN.trailing_zeros()))
}

/// Rounds to the nearest value, ties to even.
#[inline(always)]
pub fn narrow<S: Shape>(value: f32) -> u32 {
    let bits = value.to_bits();
    let sign = (bits >> (31 - S::SIGN.trailing_zeros())) & S::SIGN;
    let magnitude = bits & 0x7fff_ffff;

    let shift = F32_MAN - S::MAN;
    let round = (1 << (shift - 1)) - 1 + ((magnitude >> shift) & 1);
    let normal = (magnitude.wrapping_add(round) >> shift)
        .wrapping_sub((F32_BIAS - S::BIAS) << S::MAN)
        .min(S::OVERFLOW);
    // Adding a number whose unit in the last place is the format's smallest subnormal lets the
    // hardware round.
    let anchor = (F32_BIAS + F32_MAN + 1 - S::BIAS - S::MAN) << F32_MAN;
    let subnormal = (f32::from_bits(magnitude) + f32::from_bits(anchor))
        .to_bits()
        .wrapping_sub(anchor);

    let smallest_normal = (F32_BIAS - S::BIAS + 1) << F32_MAN;
    let finite = if magnitude < smallest_normal {
        subnormal
    } else {
        normal
    };
    // In a format without infinity, overflow is NaN. NaN gets no sign.
    if magnitude > F32_INFINITY || finite == S::NAN {
        S::NAN
    } else {
        finite | sign
    }
}

/// The format of [`half::f16`].
pub struct Half;

impl Shape for Half {
    const MAN: u32 = 10;
    const BIAS: u32 = 15;
    const SIGN: u32 = 0x8000;
    const OVERFLOW: u32 = 0x7c00;
    const SPECIAL: u32 = 0x7c00;
    const NAN: u32 = 0x7e00;
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn half_widens_like_the_half_crate() {
        for bits in 0..=u16::MAX {
            let expected = f16::from_bits(bits).to_f32();
            let seen = widen::<Half>(u32::from(bits));
            assert!(
                seen.to_bits() == expected.to_bits() || (seen.is_nan() && expected.is_nan()),
                "{bits:#x}: {seen} instead of {expected}"
            );
        }
    }

    #[test]
    fn half_narrows_like_the_half_crate() {
        // The midpoint between each two halves and its neighbours, then a stride over all of f32.
        let boundaries = (0..=u16::MAX).flat_map(|bits| {
            let low = f16::from_bits(bits).to_f32();
            let high = f16::from_bits(bits.wrapping_add(1)).to_f32();
            let middle = f32::midpoint(low, high).to_bits();
            [
                middle.wrapping_sub(1),
                middle,
                middle.wrapping_add(1),
                low.to_bits(),
            ]
        });
        for bits in boundaries.chain((0..=u32::MAX).step_by(9973)) {
            let value = f32::from_bits(bits);
            let expected = if value.is_nan() {
                0x7e00
            } else {
                f16::from_f32(value).to_bits()
            };
            assert_eq!(narrow::<Half>(value), u32::from(expected), "{bits:#x}");
        }
    }
}
