//! Reductions: as users name them, and as kernels combine elements.

use std::fmt;
use std::str::FromStr;

use crate::listed::listed;

listed! {
    /// A reduction. The first five are NCCL's, with its numbers (`ncclRedOp_t`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    #[repr(u8)]
    pub enum ReduceOp {
        /// Sum; integers wrap.
        Sum,
        /// Product; integers wrap.
        Prod,
        /// The largest; NaN wins over numbers.
        Max,
        /// The smallest; NaN wins over numbers.
        Min,
        /// Mean over the ranks.
        Avg,
        /// Every rank's elements times that rank's factor, summed.
        PreMulSum,
    }
}

impl ReduceOp {
    /// The same as a [`RedOp`]; `None` for a pre-multiplied sum, which needs a factor.
    ///
    /// ```
    /// # use spark_ccl_types as spark_ccl;
    /// use spark_ccl::{RedOp, ReduceOp};
    ///
    /// assert_eq!(ReduceOp::Max.without_factor(), Some(RedOp::Max));
    /// assert_eq!(ReduceOp::PreMulSum.without_factor(), None);
    /// ```
    pub const fn without_factor(self) -> Option<RedOp> {
        Some(match self {
            Self::Sum => RedOp::Sum,
            Self::Prod => RedOp::Prod,
            Self::Max => RedOp::Max,
            Self::Min => RedOp::Min,
            Self::Avg => RedOp::Avg,
            Self::PreMulSum => return None,
        })
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Max => "max",
            Self::Min => "min",
            Self::Avg => "avg",
            Self::PreMulSum => "premulsum",
        }
    }

    /// Its number: NCCL's in `ncclRedOp_t`, and for a pre-multiplied sum the first number that is
    /// free there.
    #[inline]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The reduction with this number, if there is one.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The error for an unknown reduction.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown reduction {0:?}: use one of {all}", all = ReduceOp::ALL.map(ReduceOp::name).join(", "))]
pub struct UnknownReduceOp(pub String);

impl FromStr for ReduceOp {
    type Err = UnknownReduceOp;

    /// Accepts [`ReduceOp::name`], in upper or lower case.
    fn from_str(name: &str) -> Result<Self, UnknownReduceOp> {
        Self::ALL
            .into_iter()
            .find(|op| op.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| UnknownReduceOp(name.to_owned()))
    }
}

listed! {
    /// How kernels combine two elements into one.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    #[repr(u8)]
    pub enum Combine {
        /// Addition; integers wrap.
        Sum,
        /// Multiplication; integers wrap.
        Prod,
        /// The larger; NaN wins.
        Max,
        /// The smaller; NaN wins.
        Min,
    }
}

impl Combine {
    /// Its name, which is also that of the reduction without factor and divisor.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => ReduceOp::Sum.name(),
            Self::Prod => ReduceOp::Prod.name(),
            Self::Max => ReduceOp::Max.name(),
            Self::Min => ReduceOp::Min.name(),
        }
    }
}

impl fmt::Display for Combine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How elements of different ranks are combined into one, whatever their type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RedOp {
    /// Sum; integers wrap.
    Sum,
    /// Product; integers wrap.
    Prod,
    /// The smallest; NaN wins over numbers.
    Min,
    /// The largest; NaN wins over numbers.
    Max,
    /// Mean over the ranks. Floats are multiplied by 1/size before they are added, so that nothing
    /// overflows unless the mean does. The products of `f32` and `f64` are in their type (denormals
    /// may lose their last bits). Those of narrower types are in `f32` and are added unrounded;
    /// each step of the algorithm rounds once. Integers are summed and then divided, rounding
    /// towards zero.
    Avg,
}

impl From<RedOp> for ReduceOp {
    #[inline]
    fn from(op: RedOp) -> Self {
        match op {
            RedOp::Sum => Self::Sum,
            RedOp::Prod => Self::Prod,
            RedOp::Min => Self::Min,
            RedOp::Max => Self::Max,
            RedOp::Avg => Self::Avg,
        }
    }
}

/// A reduction of elements of type `T`: a [`RedOp`], or a sum with a factor.
///
/// ```
/// # use spark_ccl_types as spark_ccl;
/// use spark_ccl::{RedOp, Reducer};
///
/// assert_eq!(Reducer::<f32>::from(RedOp::Max), Reducer::Op(RedOp::Max));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Reducer<T> {
    /// A reduction without a factor.
    Op(RedOp),
    /// Every rank's elements times that rank's factor, summed. Each product is rounded to the type
    /// before it is added.
    PreMulSum(T),
}

impl<T> From<RedOp> for Reducer<T> {
    #[inline]
    fn from(op: RedOp) -> Self {
        Self::Op(op)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes_lead_back() {
        for (code, op) in (0..).zip(ReduceOp::ALL) {
            assert_eq!(op.code(), code);
            assert_eq!(ReduceOp::from_code(code), Some(op));
            assert_eq!(op.name().parse(), Ok(op));
            assert!(
                UnknownReduceOp(String::new())
                    .to_string()
                    .contains(op.name())
            );
            let back = op
                .without_factor()
                .map_or(ReduceOp::PreMulSum, ReduceOp::from);
            assert_eq!(back, op);
        }
        assert_eq!(ReduceOp::from_code(ReduceOp::ALL.len() as u8), None);
        assert!("mean".parse::<ReduceOp>().is_err());
    }
}
