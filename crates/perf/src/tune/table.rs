//! The table and the summary that `spark-perf tune` prints.

use std::fmt::Write;

use spark_ccl_config::TuningEntry;
use spark_ccl_sched::Algorithm;

use super::fastest::Point;
use crate::call::collective::Collective;
use crate::notation::size::human;

const WIDTH: usize = 18;

pub(super) fn head(collective: Collective, algorithms: impl Iterator<Item = Algorithm>) -> String {
    let mut text = format!("#\n# {}\n#{:>11}", collective.name(), "count (B)");
    for algorithm in algorithms {
        let _ = write!(text, "  {:>WIDTH$}", algorithm.to_string());
    }
    text + "\n"
}

/// A row of times, with a mark at the fastest.
pub(super) fn row(point: &Point, algorithms: impl Iterator<Item = Algorithm>) -> String {
    let best = point
        .times
        .iter()
        .fold(f64::INFINITY, |best, (_, time)| best.min(*time));
    let mut text = format!("{:>12}", point.bytes);
    for algorithm in algorithms {
        let cell = match point.time(algorithm) {
            Some(time) if time <= best => format!("*{time:.2}"),
            Some(time) => format!("{time:.2}"),
            None => "-".to_owned(),
        };
        let _ = write!(text, "  {cell:>WIDTH$}");
    }
    text + "\n"
}

pub(super) fn summary(entry: &TuningEntry) -> String {
    let steps = entry.steps.iter().map(|step| {
        let up_to = human(step.up_to);
        format!("{} up to {up_to}", step.algorithm)
    });
    let steps: Vec<_> = steps.collect();
    format!("# {}: {} and beyond\n", entry.collective, steps.join(", "))
}
