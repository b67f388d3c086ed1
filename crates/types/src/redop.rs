//! Reductions: as users name them, and as kernels combine elements.

use std::fmt;
use std::str::FromStr;

use crate::Element;
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

/// The error for a name that is not a reduction's.
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

/// How elements of different ranks are combined into one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RedOp<T> {
    /// Sum; integers wrap.
    Sum,
    /// Product; integers wrap.
    Prod,
    /// The smallest; NaN wins over numbers.
    Min,
    /// The largest; NaN wins over numbers.
    Max,
    /// Mean over the ranks. Floats are multiplied by 1/size before they are added, so that nothing
    /// overflows where the mean does not: `f32` and `f64` in their type (denormals may lose their
    /// last bits), narrower ones in `f32`, where the products are not rounded before they are
    /// added, and each step of the algorithm rounds once. Integers are summed and then divided,
    /// rounding towards zero.
    Avg,
    /// Every rank's elements times that rank's factor, summed. Each product is rounded to the type
    /// before it is added.
    PreMulSum(T),
}

impl<T: Element> RedOp<T> {
    /// The reduction `op`; `None` for a pre-multiplied sum, which needs a factor.
    ///
    /// ```
    /// use spark_ccl_types::{RedOp, ReduceOp};
    ///
    /// assert_eq!(RedOp::<f32>::without_factor(ReduceOp::Max), Some(RedOp::Max));
    /// assert_eq!(RedOp::<f32>::without_factor(ReduceOp::PreMulSum), None);
    /// ```
    pub const fn without_factor(op: ReduceOp) -> Option<Self> {
        Some(match op {
            ReduceOp::Sum => Self::Sum,
            ReduceOp::Prod => Self::Prod,
            ReduceOp::Max => Self::Max,
            ReduceOp::Min => Self::Min,
            ReduceOp::Avg => Self::Avg,
            ReduceOp::PreMulSum => return None,
        })
    }

    /// The reduction without its factor.
    #[inline]
    pub const fn op(&self) -> ReduceOp {
        match self {
            Self::Sum => ReduceOp::Sum,
            Self::Prod => ReduceOp::Prod,
            Self::Max => ReduceOp::Max,
            Self::Min => ReduceOp::Min,
            Self::Avg => ReduceOp::Avg,
            Self::PreMulSum(_) => ReduceOp::PreMulSum,
        }
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
            let typed = RedOp::<f32>::without_factor(op).unwrap_or(RedOp::PreMulSum(2.0));
            assert_eq!(typed.op(), op);
        }
        assert_eq!(ReduceOp::from_code(ReduceOp::ALL.len() as u8), None);
        assert!("mean".parse::<ReduceOp>().is_err());
    }
}
