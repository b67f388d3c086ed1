//! A reduction as engines execute it, without the element type.
//!
//! **Who scales.** A mean of floats has one factor, 1/n, that all ranks know. A rank passes on a
//! single contribution unscaled. A reduction multiplies each operand that is a single contribution,
//! its own or another rank's; reduced operands are multiplied already. It adds the products
//! unrounded, and rounds its result once. So a sum of two numbers never overflows unless their mean
//! does. In a pre-multiplied sum, each rank has a factor that no other rank knows. It multiplies
//! its own elements where it reads them, and rounds the products to the type, so that they have the
//! same bits wherever they are added.

use crate::{Combine, DType, Element, ReduceOp, Reducer, Scale};

/// A [`Reducer`] without its type: a factor on input, an elementwise operation, and a division at
/// the end.
///
/// ```
/// use spark_ccl_types::{Combine, RedOp, Reducer, Reduction, Scale};
///
/// let mean = Reduction::new(Reducer::<f32>::Op(RedOp::Avg), 4);
/// assert_eq!((mean.scale, mean.combine), (Scale::Unrounded(0.25), Combine::Sum));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reduction {
    /// How two elements are combined.
    pub combine: Combine,
    /// The factor of this rank's own elements in a reduction.
    pub scale: Scale,
    /// The divisor of the results, if any.
    pub divisor: Option<u64>,
    /// Its name; `None` for [`NONE`](Self::NONE).
    pub op: Option<ReduceOp>,
    /// The bytes of the factor in its own type, padded with zeros.
    pub factor: [u8; 8],
}

impl Reduction {
    /// For operations that only move data.
    pub const NONE: Self = Self {
        op: None,
        ..Self::plain(Combine::Sum, ReduceOp::Sum)
    };

    /// The reduction `op` among this many ranks.
    #[inline]
    pub fn new<T: Element>(op: Reducer<T>, ranks: u32) -> Self {
        let (op, factor) = match op {
            Reducer::Op(op) => (op.into(), [0; 8]),
            Reducer::PreMulSum(factor) => (ReduceOp::PreMulSum, bytes(factor)),
        };
        Self::of(T::DTYPE, op, factor, ranks)
    }

    /// The reduction `op` of `dtype` elements among this many ranks. `factor` is that of
    /// [`ReduceOp::PreMulSum`]: the bytes of an element, padded with zeros.
    #[inline]
    pub fn of(dtype: DType, op: ReduceOp, factor: [u8; 8], ranks: u32) -> Self {
        match op {
            ReduceOp::Sum => Self::plain(Combine::Sum, op),
            ReduceOp::Prod => Self::plain(Combine::Prod, op),
            ReduceOp::Max => Self::plain(Combine::Max, op),
            ReduceOp::Min => Self::plain(Combine::Min, op),
            ReduceOp::Avg if dtype.is_integer() => Self {
                divisor: Some(u64::from(ranks)),
                ..Self::plain(Combine::Sum, op)
            },
            ReduceOp::Avg => Self {
                scale: Scale::Unrounded(reciprocal(ranks)),
                ..Self::plain(Combine::Sum, op)
            },
            ReduceOp::PreMulSum => Self {
                scale: Scale::from_bytes(dtype, factor),
                factor,
                ..Self::plain(Combine::Sum, op)
            },
        }
    }

    /// Its number in signatures: [`ReduceOp::code`], or [`u8::MAX`] for [`NONE`](Self::NONE).
    #[inline]
    pub const fn code(&self) -> u8 {
        match self.op {
            Some(op) => op.code(),
            None => u8::MAX,
        }
    }

    /// Whether ranks may scale their contributions differently.
    #[inline]
    pub const fn differs_by_rank(&self) -> bool {
        matches!(self.op, Some(ReduceOp::PreMulSum))
    }

    /// The factor of this rank's own elements where they are passed on or copied unreduced.
    #[inline]
    pub const fn scale_of_sent(&self) -> Scale {
        if self.differs_by_rank() {
            self.scale
        } else {
            Scale::One
        }
    }

    /// The factor of another rank's contribution, received unreduced.
    #[inline]
    pub const fn scale_of_received(&self) -> Scale {
        if self.differs_by_rank() {
            Scale::One
        } else {
            self.scale
        }
    }

    #[inline]
    const fn plain(combine: Combine, op: ReduceOp) -> Self {
        Self {
            combine,
            scale: Scale::One,
            divisor: None,
            op: Some(op),
            factor: [0; 8],
        }
    }
}

/// 1/n, rounded to nearest whatever the thread's rounding mode: all ranks must have the same value.
///
/// For n from 2^k to 2^(k+1), the significand has 53 bits, the highest worth 2^-(k+1). If n is 2^k,
/// it has one more bit, which carries into the exponent.
const fn reciprocal(n: u32) -> f64 {
    if n == 0 {
        return f64::INFINITY;
    }
    let k = n.ilog2();
    let n = n as u128;
    let significand = ((1_u128 << (53 + k)) + n / 2) / n;
    let exponent = (1022 - k as u64) << 52;
    f64::from_bits(exponent + (significand as u64 - (1 << 52)))
}

fn bytes<T: Element>(factor: T) -> [u8; 8] {
    const { assert!(size_of::<T>() <= 8, "the factor of a reduction has 8 bytes") };
    let mut bytes = [0; 8];
    bytes[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&factor));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RedOp;

    #[test]
    fn means_divide_floats_before_and_integers_after() {
        let float = Reduction::new(Reducer::<f64>::Op(RedOp::Avg), 8);
        assert_eq!(
            (float.scale, float.divisor),
            (Scale::Unrounded(0.125), None)
        );
        let integer = Reduction::new(Reducer::<i32>::Op(RedOp::Avg), 8);
        assert_eq!((integer.scale, integer.divisor), (Scale::One, Some(8)));
        assert_eq!([float.combine, integer.combine], [Combine::Sum; 2]);
    }

    #[test]
    fn reciprocals_are_those_of_a_division() {
        let large = (0..32).flat_map(|k| [-1, 0, 1].map(|by| (1_i64 << k) + by));
        for n in (1..100_000).chain(large) {
            if let Ok(n @ 1..) = u32::try_from(n) {
                let quotient = 1.0 / f64::from(n);
                assert_eq!(reciprocal(n).to_bits(), quotient.to_bits(), "{n}");
            }
        }
    }

    #[test]
    fn a_factor_is_applied_by_who_knows_it() {
        let mean = Reduction::new(Reducer::<f32>::Op(RedOp::Avg), 4);
        let scale = Scale::Unrounded(0.25);
        assert_eq!(
            [mean.scale_of_sent(), mean.scale, mean.scale_of_received()],
            [Scale::One, scale, scale]
        );
        let own = Reduction::new(Reducer::PreMulSum(3.0_f32), 4);
        let scale = Scale::Float(3.0);
        assert_eq!(
            [own.scale_of_sent(), own.scale, own.scale_of_received()],
            [scale, scale, Scale::One]
        );
    }

    #[test]
    fn factors_keep_their_bytes() {
        let reduction = Reduction::new(Reducer::PreMulSum(-3_i32), 2);
        assert!(reduction.differs_by_rank());
        assert_eq!(reduction.factor, [0xfd, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
        assert_eq!(reduction.scale, Scale::Int(-3_i64 as u64));
        assert!(!Reduction::NONE.differs_by_rank());
    }
}
