//! What `spark-perf tune` measured for ranks that are placed like these. Knows tables of times; knows no links.

use spark_ccl_config::{Layout, Tuning, TuningEntry};
use spark_ccl_types::{Algorithm, Operation};

/// For some operations: the algorithm up to each size, by ascending size.
#[derive(Debug, Default)]
pub(super) struct Measured(Vec<(Operation, Vec<(u64, Algorithm)>)>);

impl Measured {
    pub(super) fn new(tuning: &Tuning, layout: Layout) -> Self {
        Self(tuning.of(layout).filter_map(steps).collect())
    }

    /// The fastest algorithm for `bytes` of the call's count.
    pub(super) fn fastest(&self, operation: Operation, bytes: u64) -> Option<Algorithm> {
        let mut all = self.0.iter();
        let (_, steps) = all.find(|(known, _)| *known == operation)?;
        let step = steps.iter().find(|(up_to, _)| bytes <= *up_to);
        step.or(steps.last()).map(|(_, algorithm)| *algorithm)
    }
}

/// Nothing where an algorithm is named that goes through no links, or not with this collective.
fn steps(entry: &TuningEntry) -> Option<(Operation, Vec<(u64, Algorithm)>)> {
    let operation = entry.collective;
    let steps = entry.steps.iter().map(|step| (step.up_to, step.algorithm));
    let steps: Vec<_> = steps.collect();
    let is_known = |&(_, algorithm): &(u64, Algorithm)| {
        algorithm != Algorithm::OneSided && Algorithm::of(operation).contains(&algorithm)
    };
    if steps.iter().all(is_known) {
        return Some((operation, steps));
    }
    tracing::warn!("measured choices for {operation} name an algorithm that it has not");
    None
}
