//! Explains a choice to people: the algorithm, the reason, and the times that the model expects.
//! Plain data.

use std::fmt;

use spark_ccl_types::Algorithm;

/// The algorithm that a collective takes, and why. As text: one line.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Explanation {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Why this one.
    pub reason: &'static str,
    /// The cost model's time for it, in microseconds.
    pub modelled_us: f64,
    /// The next best algorithm by the cost model, with its microseconds.
    pub next_best: Option<(Algorithm, f64)>,
    /// Whether devices read messages of 32 KiB and more from registered memory.
    pub lends: bool,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (algorithm, reason, us) = (self.algorithm, self.reason, self.modelled_us);
        write!(f, "{algorithm} ({reason}; modelled: {us:.1} us")?;
        if let Some((next, us)) = self.next_best {
            write!(f, ", {next} {us:.1} us")?;
        }
        f.write_str(")")?;
        if self.lends {
            f.write_str(", zero-copy between devices for messages of 32 KiB and more")?;
        }
        Ok(())
    }
}
