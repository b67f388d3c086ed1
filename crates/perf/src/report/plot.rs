//! Measured rows as lines of a plot.

use std::path::Path;

use spark_ccl_console::plot::{Chart, Kind, Look, Point, Unit, add};

use super::{Measure, Row};
use crate::error::Error;

/// Refuses a value of `--plot` that asks for no format.
pub(crate) fn check_name(path: &Path) -> Result<(), Error> {
    Kind::of(path)
        .map(drop)
        .map_err(|error| Error::usage(format!("--plot {error}")))
}

/// Measured rows against their sizes: one line per backend, type, operation, root and mode.
pub(crate) fn chart(title: String, rows: &[Row]) -> Chart {
    let mut series = Vec::new();
    let mut kinds: Vec<String> = Vec::new();
    let several = rows
        .iter()
        .any(|row| row.key.backend != rows[0].key.backend);
    for row in rows {
        let mut kind = name(row);
        if several {
            kind = format!("{}, {kind}", row.key.backend);
        }
        let color = kinds.iter().position(|known| *known == kind);
        let color = color.unwrap_or_else(|| {
            kinds.push(kind.clone());
            kinds.len() - 1
        });
        for (mode, dashed, measure) in [
            ("out of place", false, &row.out_of_place),
            ("in place", true, &row.in_place),
        ] {
            add(
                &mut series,
                format!("{kind}, {mode}"),
                Look { color, dashed },
                point(row.key.size, measure),
            );
        }
    }
    if kinds.len() == 1 {
        for line in &mut series {
            line.look = Look::alone(line.look.dashed);
        }
    }
    Chart {
        title,
        across: Unit::Bytes,
        series,
    }
}

fn name(row: &Row) -> String {
    let key = &row.key;
    let mut name = key.dtype.to_owned();
    if !matches!(key.op, "" | "none") {
        name = format!("{name} {}", key.op);
    }
    if key.root >= 0 {
        name = format!("{name} root {}", key.root);
    }
    name
}

fn point(size: u64, measure: &Measure) -> Point {
    Point {
        x: size as f64,
        time_us: measure.time_us,
        bus_bw: measure.bus_bw,
    }
}

#[cfg(test)]
mod tests {
    use spark_ccl::Backend;

    use super::*;
    use crate::report::Key;

    fn row(dtype: &'static str, size: u64) -> Row {
        let measure = Measure {
            time_us: 1.0,
            cpu_us: 0.0,
            algorithm_bw: 1.0,
            bus_bw: 1.0,
            wrong: None,
            per_iteration: None,
            ratio: None,
            far_ranks: None,
        };
        Row {
            key: Key {
                backend: Backend::Host,
                size,
                count: size,
                dtype,
                op: "sum",
                root: -1,
            },
            out_of_place: measure.clone(),
            in_place: measure,
            timestamp: String::new(),
        }
    }

    #[test]
    fn two_lines_have_two_colours_and_related_ones_of_several_share_theirs() {
        let lines = |types: &[&'static str]| {
            let of_type = |dtype| [8, 16].map(|size| row(dtype, size));
            let rows: Vec<_> = types.iter().copied().flat_map(of_type).collect();
            let lines = chart(String::new(), &rows).series.into_iter();
            lines
                .map(|line| (line.name, line.look.color, line.look.dashed))
                .collect::<Vec<_>>()
        };
        let line = |name: &str, color, dashed| (name.to_owned(), color, dashed);
        let one = [
            line("float sum, out of place", 0, false),
            line("float sum, in place", 1, true),
        ];
        assert_eq!(lines(&["float"]), one);
        let two = [
            line("float sum, out of place", 0, false),
            line("float sum, in place", 0, true),
            line("half sum, out of place", 1, false),
            line("half sum, in place", 1, true),
        ];
        assert_eq!(lines(&["float", "half"]), two);
    }
}
