//! A reduction as engines execute it, without the element type.

use crate::{Combine, DType, Element, RedOp, ReduceOp, Scale};

/// A [`RedOp`] without its type: a factor on input, an elementwise operation, and a division at the end.
///
/// ```
/// use spark_ccl_types::{Combine, RedOp, Reduction, Scale};
///
/// let mean = Reduction::new(RedOp::<f32>::Avg, 4);
/// assert_eq!((mean.scale, mean.combine), (Scale::Float(0.25), Combine::Sum));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reduction {
    /// How two elements are combined.
    pub combine: Combine,
    /// The factor on input.
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
    pub fn new<T: Element>(op: RedOp<T>, ranks: u32) -> Self {
        let factor = match op {
            RedOp::PreMulSum(factor) => bytes(factor),
            _ => [0; 8],
        };
        Self::of(T::DTYPE, op.op(), factor, ranks)
    }

    /// The reduction `op` of elements of a type among this many ranks. The factor is that of
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
                scale: Scale::Float(1.0 / f64::from(ranks)),
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

fn bytes<T: Element>(factor: T) -> [u8; 8] {
    const { assert!(size_of::<T>() <= 8, "the factor of a reduction has 8 bytes") };
    let mut bytes = [0; 8];
    bytes[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&factor));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_divide_floats_before_and_integers_after() {
        let float = Reduction::new(RedOp::<f64>::Avg, 8);
        assert_eq!((float.scale, float.divisor), (Scale::Float(0.125), None));
        let integer = Reduction::new(RedOp::<i32>::Avg, 8);
        assert_eq!((integer.scale, integer.divisor), (Scale::One, Some(8)));
        assert_eq!([float.combine, integer.combine], [Combine::Sum; 2]);
    }

    #[test]
    fn factors_keep_their_bytes() {
        let reduction = Reduction::new(RedOp::PreMulSum(-3_i32), 2);
        assert!(reduction.differs_by_rank());
        assert_eq!(reduction.factor, [0xfd, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
        assert_eq!(reduction.scale, Scale::Int(-3_i64 as u64));
        assert!(!Reduction::NONE.differs_by_rank());
    }
}
