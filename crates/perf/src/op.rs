//! Reduction names of the command line.

use std::fmt;
use std::str::FromStr;

/// A reduction, as `-o` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    /// Sum.
    Sum,
    /// Product.
    Prod,
    /// Maximum.
    Max,
    /// Minimum.
    Min,
    /// Sum divided by the number of ranks.
    Avg,
    /// Sum of inputs that each rank multiplies by its own factor first.
    MulSum,
}

impl Op {
    /// In the order in which `-o all` runs them.
    pub(crate) const ALL: [Self; 6] = [
        Self::Sum,
        Self::Prod,
        Self::Max,
        Self::Min,
        Self::Avg,
        Self::MulSum,
    ];

    /// The name in the table.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Max => "max",
            Self::Min => "min",
            Self::Avg => "avg",
            Self::MulSum => "mulsum",
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Op {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|op| op.name() == text)
            .ok_or_else(|| {
                format!(
                    "unknown operation '{text}': expected sum, prod, max, min, avg, mulsum or all"
                )
            })
    }
}
