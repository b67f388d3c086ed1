//! The JSON report, in version 3 of nccl-tests' format. Its reader,
//! `crates/console/src/document.rs`, knows a part of the keys.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use spark_ccl_config::shown;
use spark_ccl_status::clock;

use super::{Device, Measure, Row, Totals};
use crate::stats::PerIteration;

const VERSION: u32 = 3;

/// The configuration of the run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Config {
    pub(crate) nthreads: usize,
    pub(crate) ngpus: usize,
    pub(crate) minimum_bytes: u64,
    pub(crate) maximum_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) step_factor: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) step_bytes: Option<u64>,
    pub(crate) warmup_iters: usize,
    pub(crate) iterations: usize,
    pub(crate) aggregated_iterations: usize,
    pub(crate) validation: usize,
    pub(crate) graph: u32,
    pub(crate) blocking_collectives: Text,
    pub(crate) per_iter_timing: Text,
    pub(crate) per_iter_skip: usize,
    pub(crate) parallel_init: Text,
    pub(crate) collective: &'static str,
    pub(crate) memory: &'static str,
    /// The version as a number: 22809 for 2.28.9, and 0 without NCCL.
    #[serde(skip)]
    pub(crate) nccl_version: u32,
    pub(crate) devices: Vec<DeviceEntry>,
}

/// A boolean as a string, as in nccl-tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Text {
    True,
    False,
    Unchecked,
}

impl From<bool> for Text {
    fn from(value: bool) -> Self {
        if value { Self::True } else { Self::False }
    }
}

/// A rank.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct DeviceEntry {
    rank: usize,
    group: u32,
    pid: u32,
    hostname: String,
    device: usize,
    device_hex: String,
    device_info: String,
}

impl From<&Device> for DeviceEntry {
    fn from(device: &Device) -> Self {
        Self {
            rank: device.rank,
            group: 0,
            pid: device.pid,
            hostname: device.host.clone(),
            device: device.index,
            device_hex: device.bus.clone(),
            device_info: device.name.clone(),
        }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    start_time: &'a str,
    args: &'a [String],
    env: &'a [String],
    nccl_version: u32,
    spark_ccl_version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<&'a Config>,
    results: Vec<Entry<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    out_of_bounds: Option<OutOfBounds>,
    #[serde(skip_serializing_if = "Option::is_none")]
    average_bus_bandwidth: Option<AverageBandwidth>,
    errors: &'a [String],
    end_time: String,
}

#[derive(Serialize)]
struct OutOfBounds {
    count: u64,
    okay: Text,
}

#[derive(Serialize)]
struct AverageBandwidth {
    bandwidth: f64,
    okay: Text,
}

#[derive(Serialize)]
struct Entry<'a> {
    backend: String,
    size: u64,
    count: u64,
    #[serde(rename = "type")]
    dtype: &'static str,
    redop: &'static str,
    root: String,
    out_of_place: Measurement,
    #[serde(skip_serializing_if = "Option::is_none")]
    out_of_place_per_iter: Option<&'a PerIteration>,
    in_place: Measurement,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_place_per_iter: Option<&'a PerIteration>,
    actual_iterations: usize,
    /// A key of the format; always empty here.
    experiment_name: &'static str,
}

#[derive(Serialize)]
struct Measurement {
    time: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_time: Option<f64>,
    alg_bw: f64,
    bus_bw: f64,
    nwrong: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    far_ranks: Option<u64>,
}

impl Measurement {
    fn new(measure: &Measure, cpu_time: bool) -> Self {
        Self {
            time: measure.time_us,
            cpu_time: cpu_time.then_some(measure.cpu_us),
            alg_bw: measure.algorithm_bw,
            bus_bw: measure.bus_bw,
            nwrong: measure.wrong,
            ratio: measure.ratio,
            far_ranks: measure.far_ranks,
        }
    }
}

/// A report that is being written.
#[derive(Debug)]
pub(crate) struct JsonReport {
    /// `None` for standard output.
    file: Option<File>,
    path: PathBuf,
    start_time: String,
    args: Vec<String>,
    env: Vec<String>,
    config: Option<Config>,
    cpu_time: bool,
}

impl JsonReport {
    /// Creates the file: `path`, or the first of `path.0`, `path.1`, ... that does not exist. `-`
    /// is standard output.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let (file, path) = if path.as_os_str() == "-" {
            (None, path.to_path_buf())
        } else {
            let (file, path) = create_new(path)?;
            (Some(file), path)
        };
        Ok(Self {
            file,
            path,
            start_time: clock::now(),
            args: std::env::args().collect(),
            env: environment(std::env::vars_os()),
            config: None,
            cpu_time: false,
        })
    }

    /// The path of the report.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the report alone goes to standard output.
    pub(crate) fn is_output(&self) -> bool {
        self.file.is_none()
    }

    /// Sets the configuration, which is known only when the ranks are.
    pub(crate) fn configure(&mut self, config: Config, cpu_time: bool) {
        self.config = Some(config);
        self.cpu_time = cpu_time;
    }

    /// Writes everything that is known so far, and replaces what was written before; to standard
    /// output only the end.
    pub(crate) fn save(
        &mut self,
        rows: &[Row],
        totals: Option<&Totals>,
        errors: &[String],
    ) -> io::Result<()> {
        let document = Document {
            version: VERSION,
            start_time: &self.start_time,
            args: &self.args,
            env: &self.env,
            nccl_version: self.config.as_ref().map_or(0, |config| config.nccl_version),
            spark_ccl_version: env!("CARGO_PKG_VERSION"),
            config: self.config.as_ref(),
            results: rows.iter().map(|row| self.entry(row)).collect(),
            out_of_bounds: totals.map(|totals| OutOfBounds {
                count: totals.out_of_bounds,
                okay: (totals.out_of_bounds == 0).into(),
            }),
            average_bus_bandwidth: totals.map(|totals| AverageBandwidth {
                bandwidth: totals.average_bus_bw,
                okay: totals.bandwidth_okay().map_or(Text::Unchecked, Text::from),
            }),
            errors,
            end_time: clock::now(),
        };
        let text = serde_json::to_vec_pretty(&document)?;
        let Some(file) = &mut self.file else {
            let is_end = totals.is_some() || !errors.is_empty();
            return if is_end {
                io::stdout().write_all(&[&text[..], b"\n"].concat())
            } else {
                Ok(())
            };
        };
        file.rewind()?;
        file.write_all(&text)?;
        file.set_len(text.len() as u64)
    }

    fn entry<'a>(&self, row: &'a Row) -> Entry<'a> {
        Entry {
            backend: row.key.backend.to_string(),
            size: row.key.size,
            count: row.key.count,
            dtype: row.key.dtype,
            redop: row.key.op,
            root: row.key.root.to_string(),
            out_of_place: Measurement::new(&row.out_of_place, self.cpu_time),
            out_of_place_per_iter: row.out_of_place.per_iteration.as_ref(),
            in_place: Measurement::new(&row.in_place, self.cpu_time),
            in_place_per_iter: row.in_place.per_iteration.as_ref(),
            actual_iterations: self.config.as_ref().map_or(0, |config| config.iterations),
            experiment_name: "",
        }
    }
}

fn create_new(path: &Path) -> io::Result<(File, PathBuf)> {
    let numbered = (0..).map(|number: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    });
    for candidate in std::iter::once(path.to_path_buf()).chain(numbered) {
        match OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&candidate)
        {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            opened => return Ok((opened?, candidate)),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// The variables of this library and of NCCL, except those with secrets; as they may be shown.
fn environment(all: impl Iterator<Item = (std::ffi::OsString, std::ffi::OsString)>) -> Vec<String> {
    let mut kept: Vec<String> = all
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| name.starts_with("SPARK_CCL_") || name.starts_with("NCCL_"))
        .filter(|(name, _)| {
            !["SECRET", "UNIQUE_ID", "COMM_ID"]
                .iter()
                .any(|word| name.contains(word))
        })
        .map(|(name, value)| format!("{name}={}", shown(&name, &value)))
        .collect();
    kept.sort();
    kept
}

#[cfg(test)]
mod tests {
    use spark_ccl::Backend;

    use super::*;
    use crate::report::Key;

    fn directory(name: &str) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("spark-perf-json-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn nothing_is_overwritten() {
        let directory = directory("keep");
        let path = directory.join("a.json");
        std::fs::write(&path, "mine").unwrap();
        assert_eq!(
            JsonReport::create(&path).unwrap().path(),
            directory.join("a.json.0")
        );
        assert_eq!(
            JsonReport::create(&path).unwrap().path(),
            directory.join("a.json.1")
        );
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn shape() {
        let directory = directory("shape");
        let mut report = JsonReport::create(&directory.join("a.json")).unwrap();
        let measure = Measure {
            time_us: 1.0,
            cpu_us: 0.5,
            algorithm_bw: 2.0,
            bus_bw: 3.0,
            wrong: Some(0),
            per_iteration: Some(PerIteration::new(vec![1.0], 0)),
            ratio: Some(1.5),
            far_ranks: Some(2),
        };
        let key = Key {
            backend: Backend::Nccl,
            size: 8,
            count: 2,
            dtype: "float",
            op: "sum",
            root: -1,
        };
        let row = Row {
            key,
            out_of_place: measure.clone(),
            in_place: Measure {
                wrong: None,
                per_iteration: None,
                ratio: None,
                far_ranks: None,
                ..measure
            },
            timestamp: String::new(),
        };
        let totals = Totals {
            out_of_bounds: 0,
            average_bus_bw: 3.0,
            required_bus_bw: None,
        };
        report
            .save(&[row.clone(), row.clone()], None, &["x".into()])
            .unwrap();
        report.save(&[row], Some(&totals), &[]).unwrap();
        let value: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(report.path()).unwrap()).unwrap();
        assert_eq!(value["version"], 3);
        assert_eq!(value["results"].as_array().unwrap().len(), 1);
        assert_eq!(value["results"][0]["root"], "-1");
        assert_eq!(value["results"][0]["out_of_place"]["bus_bw"], 3.0);
        assert_eq!(value["results"][0]["out_of_place_per_iter"]["p99_us"], 1.0);
        assert!(value["results"][0]["in_place"]["nwrong"].is_null());
        assert_eq!(value["results"][0]["backend"], "nccl");
        assert_eq!(value["results"][0]["out_of_place"]["ratio"], 1.5);
        assert!(value["results"][0]["in_place"].get("ratio").is_none());
        assert_eq!(value["results"][0]["out_of_place"]["far_ranks"], 2);
        assert!(value["results"][0]["in_place"].get("far_ranks").is_none());
        assert_eq!(value["out_of_bounds"]["okay"], "true");
        assert_eq!(value["average_bus_bandwidth"]["okay"], "unchecked");
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn secrets_stay_out() {
        let names = [
            "SPARK_CCL_SECRET",
            "SPARK_CCL_UNIQUE_ID",
            "NCCL_COMM_ID",
            "HOME",
            "NCCL_DEBUG",
            "SPARK_CCL_ALGO",
            // A secret whose name is misspelt.
            "SPARK_CCL_SECERT",
        ];
        let kept = environment(names.iter().map(|name| (name.into(), "v".into())));
        let expected = [
            "NCCL_DEBUG=v",
            "SPARK_CCL_ALGO=v",
            "SPARK_CCL_SECERT=redacted",
        ];
        assert_eq!(kept, expected);
    }
}
