//! Conversions between f32 and floats of at most 16 bits, without branches so that loops over
//! them vectorise.
//!
//! `MAN` is the number of mantissa bits, `BIAS` that of the exponent. Values travel in the low
//! bits of a `u32`, the sign split off by the caller through [`Shape::SIGN`].

/// A format with fewer bits than f32.
pub trait Shape {
    /// Mantissa bits.
    const MAN: u32;
    /// Exponent bias.
    const BIAS: u32;
    /// The sign bit.
    const SIGN: u32;
    /// Largest magnitude that may come out of rounding; anything above becomes this. Infinity, or
    /// NaN where there is none.
    const OVERFLOW: u32;
    /// Magnitudes from here on are infinity or NaN.
    const SPECIAL: u32;
    /// The NaN that conversion from f32 yields, whatever its sign or payload.
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
    // A subnormal has no leading one: give it one, and subtract that again.
    let one = (F32_BIAS - S::BIAS + 1) << F32_MAN;
    let subnormal = (f32::from_bits(shifted + one) - f32::from_bits(one)).to_bits();
    let finite = if magnitude < (1 << S::MAN) {
        subnormal
    } else {
        normal
    };
    // Formats without infinity have their only NaN at `SPECIAL`, with a mantissa that is not 0.
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
    // Adding a number whose last place is the format's smallest subnormal lets the hardware round.
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
    // Overflow is NaN in a format without infinity, and NaN has no sign.
    if magnitude > F32_INFINITY || finite == S::NAN {
        S::NAN
    } else {
        finite | sign
    }
}

/// The shape of [`half::f16`].
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
        // Each boundary between two halves, and its neighbours; then a stride over all of f32.
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
