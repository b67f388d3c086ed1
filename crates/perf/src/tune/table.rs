//! The table and the summary that `spark-perf tune` prints.

use std::fmt::{Display, Write};

use spark_ccl_console::notation::size::human;

use super::fastest::Point;
use crate::call::collective::Collective;

const WIDTH: usize = 18;

pub(super) fn head(collective: Collective, choices: impl Iterator<Item: Display>) -> String {
    let mut text = format!("#\n# {}\n#{:>11}", collective.name(), "count (B)");
    for choice in choices {
        let _ = write!(text, "  {:>WIDTH$}", choice.to_string());
    }
    text + "\n"
}

/// A row of times, with a mark at the fastest.
pub(super) fn row<T: Copy + PartialEq>(
    point: &Point<T>,
    choices: impl Iterator<Item = T>,
) -> String {
    let best = point
        .times
        .iter()
        .fold(f64::INFINITY, |best, (_, time)| best.min(*time));
    let mut text = format!("{:>12}", point.bytes);
    for choice in choices {
        let cell = match point.time(choice) {
            Some(time) if time <= best => format!("*{time:.2}"),
            Some(time) => format!("{time:.2}"),
            None => "-".to_owned(),
        };
        let _ = write!(text, "  {cell:>WIDTH$}");
    }
    text + "\n"
}

pub(super) fn summary<T: Display>(collective: Collective, steps: &[(u64, T)]) -> String {
    let steps = steps
        .iter()
        .map(|(up_to, choice)| format!("{choice} up to {}", human(*up_to)));
    let steps: Vec<_> = steps.collect();
    format!("# {}: {} and beyond\n", collective.name(), steps.join(", "))
}
