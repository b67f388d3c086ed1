//! Tables of the fastest choice for each size, as `spark-perf tune` has measured it. Knows neither
//! what they choose from nor where they come from.

use spark_ccl_types::Operation;

/// For some operations: the choice up to each size, by ascending size. The last one also applies to
/// all larger sizes.
#[derive(Debug)]
pub(crate) struct Measured<T>(Vec<(Operation, Vec<(u64, T)>)>);

/// The reason for a choice from a table of measurements.
pub(crate) const MEASURED: &str = "measured by spark-perf tune on this machine";

impl<T: Copy> Measured<T> {
    /// The fastest choice for a call with a count of `bytes` bytes.
    pub(crate) fn fastest(&self, operation: Operation, bytes: u64) -> Option<T> {
        let mut all = self.0.iter();
        let (_, steps) = all.find(|(known, _)| *known == operation)?;
        let step = steps.iter().find(|(up_to, _)| bytes <= *up_to);
        step.or(steps.last()).map(|(_, choice)| *choice)
    }
}

impl<T> Default for Measured<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> FromIterator<(Operation, Vec<(u64, T)>)> for Measured<T> {
    fn from_iter<I: IntoIterator<Item = (Operation, Vec<(u64, T)>)>>(entries: I) -> Self {
        Self(entries.into_iter().collect())
    }
}
