//! The bit patterns of the element types, encoded and decoded without the types' own arithmetic.

use spark_ccl::DType;

/// The layout of a type's bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// Two's complement, or unsigned.
    Int {
        /// The width.
        bits: u32,
        /// Whether there are negative numbers.
        signed: bool,
    },
    /// Sign, exponent, fraction.
    Float {
        /// The width.
        bits: u32,
        /// The stored bits of the fraction.
        fraction: u32,
        /// The number that is added to the exponent.
        bias: i32,
    },
}

impl Format {
    /// The layout of an element type.
    pub(crate) const fn of(dtype: DType) -> Self {
        match dtype {
            DType::I8 => int(8, true),
            DType::U8 => int(8, false),
            DType::I32 => int(32, true),
            DType::U32 => int(32, false),
            DType::I64 => int(64, true),
            DType::U64 => int(64, false),
            DType::F16 => float(16, 10, 15),
            DType::F32 => float(32, 23, 127),
            DType::F64 => float(64, 52, 1023),
            DType::Bf16 => float(16, 7, 127),
            DType::F8E4M3 => float(8, 3, 7),
            DType::F8E5M2 => float(8, 2, 15),
        }
    }

    /// The width of an element in bits.
    pub(crate) const fn bits(self) -> u32 {
        match self {
            Self::Int { bits, .. } | Self::Float { bits, .. } => bits,
        }
    }

    /// A mask of an element's bits.
    pub(crate) const fn mask(self) -> u64 {
        u64::MAX >> (64 - self.bits())
    }
}

const fn int(bits: u32, signed: bool) -> Format {
    Format::Int { bits, signed }
}

const fn float(bits: u32, fraction: u32, bias: i32) -> Format {
    Format::Float {
        bits,
        fraction,
        bias,
    }
}

/// The bits of `±mantissa * 2^exponent`, rounded to nearest even if the type has fewer bits. Zero
/// is always positive. The value must be within the type's range.
pub(crate) fn encode(
    bits: u32,
    fraction: u32,
    bias: i32,
    negative: bool,
    mantissa: u64,
    exponent: i32,
) -> u64 {
    if mantissa == 0 {
        return 0;
    }
    let top = 63 - mantissa.leading_zeros() as i32;
    // The exponent of the last stored bit, for a normal number or a subnormal.
    let unit = (top + exponent).max(1 - bias) - fraction as i32;
    let scaled = shift_rounding(mantissa, exponent - unit);
    let biased = (unit + fraction as i32 + bias) as u64;
    // The leading one of the scaled mantissa adds one to the exponent field below. A carry from
    // rounding adds another, which gives the right result as well.
    let magnitude = ((biased - 1) << fraction) + scaled;
    magnitude | u64::from(negative) << (bits - 1)
}

/// `value * 2^shift`, rounded to nearest even.
fn shift_rounding(value: u64, shift: i32) -> u64 {
    if shift >= 0 {
        return value << shift;
    }
    let down = shift.unsigned_abs();
    if down > 63 {
        return 0;
    }
    let kept = value >> down;
    let rest = value & ((1 << down) - 1);
    let half = 1u64 << (down - 1);
    kept + u64::from(rest > half || (rest == half && kept & 1 == 1))
}

/// The bits of the number nearest to a finite, non-negative f64.
pub(crate) fn encode_f64(bits: u32, fraction: u32, bias: i32, value: f64) -> u64 {
    let raw = value.to_bits();
    let exponent = (raw >> 52) as i32 & 0x7ff;
    let stored = raw & ((1 << 52) - 1);
    let (mantissa, exponent) = if exponent == 0 {
        (stored, -1074)
    } else {
        (stored | 1 << 52, exponent - 1075)
    };
    encode(bits, fraction, bias, false, mantissa, exponent)
}

#[cfg(test)]
pub(crate) fn decode(bits: u32, fraction: u32, bias: i32, raw: u64) -> f64 {
    let sign = if raw >> (bits - 1) & 1 == 1 {
        -1.0
    } else {
        1.0
    };
    let field = (raw >> fraction) & ((1 << (bits - 1 - fraction)) - 1);
    let stored = (raw & ((1 << fraction) - 1)) as f64;
    let scale = 2f64.powi(field.max(1) as i32 - bias - fraction as i32);
    let hidden = if field == 0 {
        0.0
    } else {
        (1u64 << fraction) as f64
    };
    sign * (hidden + stored) * scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_match_the_compiler() {
        for (mantissa, exponent) in [
            (1u64, 0),
            (3, -1),
            (0xff_ffff, -20),
            (1, -126),
            (1, -149),
            (5, 100),
            (0x1ff_ffff, 0),
            (0x1ff_fffe, 3),
        ] {
            let value = mantissa as f64 * 2f64.powi(exponent);
            assert_eq!(
                encode(32, 23, 127, true, mantissa, exponent),
                u64::from((-(value as f32)).to_bits()),
                "{mantissa} {exponent}"
            );
            assert_eq!(
                encode(64, 52, 1023, false, mantissa, exponent),
                value.to_bits()
            );
            assert_eq!(
                encode_f64(32, 23, 127, value),
                u64::from((value as f32).to_bits())
            );
        }
    }

    #[test]
    fn halves_round_as_the_half_crate_does() {
        // From f32, because the crate rounds twice when it converts from f64.
        for i in 0..2000u16 {
            let value = f32::from(i) * 0.37 + 1e-4;
            let wide = f64::from(value);
            let bits = encode_f64(16, 10, 15, wide);
            let expected = half::f16::from_f32(value).to_bits();
            assert_eq!(bits, u64::from(expected), "{value}");
            let bits = encode_f64(16, 7, 127, wide);
            let expected = half::bf16::from_f32(value).to_bits();
            assert_eq!(bits, u64::from(expected), "{value}");
        }
    }

    #[test]
    fn eight_bit_floats_round_trip() {
        for (fraction, bias) in [(3, 7), (2, 15)] {
            for raw in 0..0x78u64 {
                assert_eq!(
                    encode_f64(8, fraction, bias, decode(8, fraction, bias, raw)),
                    raw
                );
            }
        }
    }
}
