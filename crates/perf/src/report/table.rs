//! The table, in nccl-tests' format.

use std::fmt::Write;

use spark_ccl_console::notation::number::significant;

use super::{Device, Measure, Row, Totals};

/// The optional columns.
#[expect(
    clippy::struct_excessive_bools,
    reason = "any of them may be asked for"
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Columns {
    /// Each row's backend, and the ratio of its times to those of the first.
    pub(crate) backends: bool,
    pub(crate) per_iteration: bool,
    pub(crate) cpu_time: bool,
    pub(crate) timestamps: bool,
}

/// The header's line for a rank.
pub(crate) fn device(device: &Device) -> String {
    let Device {
        rank,
        pid,
        host,
        index,
        bus,
        name,
    } = device;
    format!("#  Rank {rank:2} Group  0 Pid {pid:6} on {host:>10} device {index:2} [{bus}] {name}")
}

/// The three lines above the first row.
pub(crate) fn column_heads(columns: Columns) -> String {
    let time = if columns.cpu_time { "cputime" } else { "time" };
    let half = |time: &str, gbps: &str, wrong: &str, iteration: [&str; 4], ratio: &str| {
        let mut text = format!("  {time:>7}  {gbps}  {wrong:>6}");
        if columns.per_iteration {
            for head in iteration {
                let _ = write!(text, "  {head:>7}");
            }
        }
        if columns.backends {
            let _ = write!(text, "  {ratio:>6}");
        }
        text
    };
    let names = half(
        time,
        " algbw   busbw",
        "#wrong",
        ["i_min", "i_max", "i_p99", "i_cv%"],
        "ratio",
    );
    let units = half(
        "(us)",
        "(GB/s)  (GB/s)",
        "",
        ["(us)", "(us)", "(us)", "(%)"],
        "",
    );
    let left = |size: &str, count: &str, rest: [&str; 4]| {
        let [dtype, op, root, backend] = rest;
        let mut text = format!("# {size:>10}  {count:>12}  {dtype:>8}  {op:>6}  {root:>6}");
        if columns.backends {
            let _ = write!(text, "  {backend:>7}");
        }
        text
    };
    let stamp = |text: &str| {
        if columns.timestamps {
            format!("{text:>21}")
        } else {
            String::new()
        }
    };
    let width = names.chars().count();
    format!(
        "#\n{}{:^width$}{:^width$}\n{}{names}{names}{}\n{}{units}{units}{}\n",
        left("", "", [""; 4]),
        "out-of-place",
        "in-place",
        left("size", "count", ["type", "redop", "root", "backend"]),
        stamp("timestamp"),
        left("(B)", "(elements)", [""; 4]),
        stamp("UTC"),
    )
}

/// A row of results.
pub(crate) fn row(row: &Row, columns: Columns) -> String {
    let key = &row.key;
    let mut text = format!(
        "{:12}  {:12}  {:>8}  {:>6}  {:6}",
        key.size, key.count, key.dtype, key.op, key.root
    );
    if columns.backends {
        let _ = write!(text, "  {:>7}", key.backend.to_string());
    }
    for measure in [&row.out_of_place, &row.in_place] {
        text.push_str(&half(measure, columns));
    }
    if columns.timestamps {
        let _ = write!(text, "{:>21}", row.timestamp);
    }
    text
}

fn half(measure: &Measure, columns: Columns) -> String {
    let time = if columns.cpu_time {
        measure.cpu_us
    } else {
        measure.time_us
    };
    let wrong = measure
        .wrong
        .map_or_else(|| "N/A".to_owned(), |wrong| wrong.to_string());
    let mut text = format!(
        "  {}  {}  {}  {wrong:>6}",
        fit(time, 7),
        fit(measure.algorithm_bw, 6),
        fit(measure.bus_bw, 6)
    );
    if let Some(stats) = &measure.per_iteration {
        for value in [stats.min_us, stats.max_us, stats.p99_us, stats.cv_pct] {
            let _ = write!(text, "  {}", fit(value, 7));
        }
    }
    if columns.backends {
        let ratio = measure
            .ratio
            .map_or_else(|| "-".to_owned(), |ratio| fit(ratio, 6));
        let _ = write!(text, "  {ratio:>6}");
    }
    text
}

/// The lines below the last row.
pub(crate) fn footer(totals: &Totals, program: &str) -> String {
    let okay = |good: bool| if good { "OK" } else { "FAILED" };
    let bandwidth = totals.bandwidth_okay().map_or("", okay);
    format!(
        "# {:<20} : {} {}\n# {:<20} : {} {bandwidth}\n#\n# Collective test concluded: {program}\n",
        "Out of bounds values",
        totals.out_of_bounds,
        okay(totals.out_of_bounds == 0),
        "Avg bus bandwidth",
        significant(totals.average_bus_bw),
    )
}

/// A number with as many decimals (two, one or none) as fit, or else with an exponent.
fn fit(value: f64, width: usize) -> String {
    for decimals in (0..=2).rev() {
        let text = format!("{value:width$.decimals$}");
        if text.len() <= width {
            return text;
        }
    }
    let text = if width >= 7 {
        format!("{value:.1e}")
    } else {
        format!("{value:.0e}")
    };
    // The exponent in C's format: a sign and at least two digits.
    match text.split_once('e') {
        Some((mantissa, exponent)) => {
            let exponent: i32 = exponent.parse().unwrap_or(0);
            let sign = if exponent < 0 { '-' } else { '+' };
            format!(
                "{:>width$}",
                format!("{mantissa}e{sign}{:02}", exponent.abs())
            )
        }
        None => format!("{text:>width$}"),
    }
}

#[cfg(test)]
mod tests {
    use spark_ccl::Backend;

    use super::*;
    use crate::report::Key;
    use crate::stats::PerIteration;

    fn measure(wrong: Option<u64>) -> Measure {
        Measure {
            time_us: 12.345,
            cpu_us: 23.456,
            algorithm_bw: 1.0,
            bus_bw: 1.5,
            wrong,
            per_iteration: None,
            ratio: None,
            far_ranks: None,
        }
    }

    fn sample(wrong: Option<u64>) -> Row {
        let key = Key {
            backend: Backend::Nccl,
            size: 8,
            count: 2,
            dtype: "float",
            op: "sum",
            root: -1,
        };
        Row {
            key,
            out_of_place: measure(wrong),
            in_place: measure(wrong),
            timestamp: "2026-01-01 00:00:00".into(),
        }
    }

    #[test]
    fn numbers_shrink_to_fit() {
        assert_eq!(fit(1.234, 7), "   1.23");
        assert_eq!(fit(12345.67, 7), "12345.7");
        assert_eq!(fit(1_234_567.0, 7), "1234567");
        assert_eq!(fit(123_456_789.0, 7), "1.2e+08");
        assert_eq!(fit(1234.5, 6), "1234.5");
        assert_eq!(fit(123_456_789.0, 6), " 1e+08");
    }

    #[test]
    fn rows_as_nccl_tests_prints_them() {
        let plain = "           8             2     float     sum      -1    12.35    1.00    1.50       0\
                     \x20   12.35    1.00    1.50       0";
        assert_eq!(row(&sample(Some(0)), Columns::default()), plain);
        assert!(row(&sample(None), Columns::default()).ends_with("   1.50     N/A"));
        let cpu_time = Columns {
            cpu_time: true,
            ..Columns::default()
        };
        assert_eq!(
            row(&sample(Some(0)), cpu_time),
            plain.replace("12.35", "23.46")
        );
        let stamped = row(
            &sample(Some(0)),
            Columns {
                timestamps: true,
                ..Columns::default()
            },
        );
        assert_eq!(stamped, format!("{plain}  2026-01-01 00:00:00"));
    }

    #[test]
    fn rows_of_two_backends() {
        let both = Columns {
            backends: true,
            ..Columns::default()
        };
        let mut sample = sample(Some(0));
        let first = row(&sample, both);
        assert!(first.contains("    -1     nccl  "), "{first}");
        assert!(first.ends_with("   1.50       0       -"), "{first}");
        sample.in_place.ratio = Some(1.25);
        assert!(row(&sample, both).ends_with("   1.50       0    1.25"));
    }

    #[test]
    fn heads_stand_over_their_columns() {
        for (per_iteration, backends) in [(false, false), (true, false), (false, true)] {
            let columns = Columns {
                backends,
                per_iteration,
                ..Columns::default()
            };
            let mut sample = sample(Some(0));
            if per_iteration {
                sample.out_of_place.per_iteration = Some(PerIteration::new(vec![1.0], 0));
                sample.in_place.per_iteration = Some(PerIteration::new(vec![1.0], 0));
            }
            let heads = column_heads(columns);
            let names = heads.lines().nth(2).unwrap();
            assert_eq!(names.len(), row(&sample, columns).len());
            assert_eq!(names.matches("#wrong").count(), 2);
        }
    }

    #[test]
    fn foot() {
        let totals = Totals {
            out_of_bounds: 0,
            average_bus_bw: 1.5,
            required_bus_bw: None,
        };
        assert!(
            footer(&totals, "x_perf")
                .starts_with("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 1.5 \n#\n")
        );
        let bad = Totals {
            out_of_bounds: 3,
            average_bus_bw: 0.8,
            required_bus_bw: Some(1.0),
        };
        let text = footer(&bad, "x_perf");
        assert!(
            text.contains("3 FAILED") && text.contains("0.8 FAILED"),
            "{text}"
        );
    }
}
