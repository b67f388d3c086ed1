//! What `spark-perf tune` measured for ranks that are placed like these. Knows tables of times;
//! knows no links.

use spark_ccl_config::{Layout, Tuning, TuningEntry};
use spark_ccl_types::{Algorithm, Operation};

use crate::measured::Measured;

pub(super) fn measured(tuning: &Tuning, layout: Layout) -> Measured<Algorithm> {
    tuning.of(layout).filter_map(steps).collect()
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
    spark_ccl_log::warn!("measured choices for {operation} name an algorithm that it has not");
    None
}
