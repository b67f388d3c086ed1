//! Compares this run with an earlier one.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use spark_ccl_console::document::{self, Document, Timing};

use super::Row;

/// The results of an earlier run.
#[derive(Debug)]
pub(crate) struct Earlier {
    path: PathBuf,
    results: Vec<document::Entry>,
}

impl Earlier {
    /// Reads a JSON report of spark-perf or nccl-tests.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("--compare {}: {error}", path.display()))?;
        let document: Document = serde_json::from_str(&text).map_err(|error| {
            format!(
                "--compare {}: not a report of spark-perf or nccl-tests: {error}",
                path.display()
            )
        })?;
        Ok(Self {
            path: path.to_path_buf(),
            results: document.results,
        })
    }

    /// A table, as comment lines, of both times and bandwidths, and the speedup of this run.
    pub(crate) fn table(&self, rows: &[Row]) -> String {
        let mut text = format!(
            "#\n# Beside {} (ratio: bus bandwidth now / then)\n",
            self.path.display()
        );
        let _ = writeln!(
            text,
            "# {:>12}  {:>8}  {:>6}  {:>4}  {:>31}  {:>31}\n\
             # {:>12}  {:>8}  {:>6}  {:>4}  {:>9} {:>9} {:>11}  {:>9} {:>9} {:>11}",
            "",
            "",
            "",
            "",
            "out-of-place GB/s",
            "in-place GB/s",
            "size",
            "type",
            "redop",
            "root",
            "then",
            "now",
            "ratio",
            "then",
            "now",
            "ratio"
        );
        for row in rows {
            let key = &row.key;
            let _ = write!(
                text,
                "# {:12}  {:>8}  {:>6}  {:4}",
                key.size, key.dtype, key.op, key.root
            );
            let then = self.find(row);
            for (mode, now) in [
                (
                    then.and_then(|then| then.out_of_place.as_ref()),
                    &row.out_of_place,
                ),
                (then.and_then(|then| then.in_place.as_ref()), &row.in_place),
            ] {
                let _ = match mode {
                    Some(then) => write!(
                        text,
                        "  {:9.3} {:9.3} {:>11}",
                        then.bus_bw,
                        now.bus_bw,
                        ratio(then, now.bus_bw, now.time_us)
                    ),
                    None => write!(text, "  {:>9} {:9.3} {:>11}", "-", now.bus_bw, "-"),
                };
            }
            text.push('\n');
        }
        text
    }

    /// The earlier result of the same backend, or else that of another.
    fn find(&self, row: &Row) -> Option<&document::Entry> {
        let root = row.key.root.to_string();
        let mut alike = self.results.iter().filter(|result| {
            result.size == row.key.size
                && result.dtype == row.key.dtype
                && result.redop == row.key.op
                && result.root.trim() == root
        });
        let backend = row.key.backend.to_string();
        let mut same = alike.clone();
        let same = same.find(|result| result.backend.as_ref() == Some(&backend));
        same.or_else(|| alike.next())
    }
}

/// The ratio of the bandwidths, or of the times if both bandwidths are 0 (one rank, or no data).
fn ratio(then: &Timing, bus_bw: f64, time_us: f64) -> String {
    let ratio = if then.bus_bw > 0.0 {
        bus_bw / then.bus_bw
    } else {
        then.time.unwrap_or(f64::NAN) / time_us
    };
    if ratio.is_finite() {
        format!("{ratio:.2}x")
    } else {
        "-".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use spark_ccl::Backend;

    use super::*;
    use crate::report::{Key, Measure};

    #[test]
    fn matching_rows_get_a_ratio() {
        let text = r#"{"version":3,"results":[{"size":8,"count":2,"type":"float","redop":"sum","root":"    -1",
            "out_of_place":{"time":2.0,"alg_bw":1.0,"bus_bw":2.0,"nwrong":0},"in_place":null}]}"#;
        let path =
            std::env::temp_dir().join(format!("spark-perf-compare-{}.json", std::process::id()));
        std::fs::write(&path, text).unwrap();
        let earlier = Earlier::read(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        let measure = Measure {
            time_us: 1.0,
            cpu_us: 1.0,
            algorithm_bw: 2.0,
            bus_bw: 3.0,
            wrong: None,
            per_iteration: None,
            ratio: None,
            far_ranks: None,
        };
        let row = |size| Row {
            key: Key {
                backend: Backend::Nccl,
                size,
                count: 2,
                dtype: "float",
                op: "sum",
                root: -1,
            },
            out_of_place: measure.clone(),
            in_place: measure.clone(),
            timestamp: String::new(),
        };
        let table = earlier.table(&[row(8), row(16)]);
        assert_eq!(table.matches("1.50x").count(), 1, "{table}");
        assert!(table.lines().all(|line| line.starts_with('#')));
        assert!(table.lines().last().unwrap().contains("16"));
    }

    #[test]
    fn other_files_are_refused() {
        assert!(
            Earlier::read(Path::new("/nonexistent.json"))
                .unwrap_err()
                .contains("/nonexistent.json")
        );
        let path = std::env::temp_dir().join(format!(
            "spark-perf-compare-bad-{}.json",
            std::process::id()
        ));
        std::fs::write(&path, "{}").unwrap();
        assert!(Earlier::read(&path).unwrap_err().contains("not a report"));
        std::fs::remove_file(path).unwrap();
    }
}
