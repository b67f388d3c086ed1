//! Reads the points of a real run.

use std::path::Path;

use serde::Deserialize;

use crate::error::Error;

/// The time of a measured collective.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Point {
    pub(super) ranks: u32,
    pub(super) bytes: u64,
    pub(super) dtype: String,
    pub(super) us: f64,
}

#[derive(Deserialize)]
struct Document {
    config: Config,
    results: Vec<Entry>,
}

#[derive(Deserialize)]
struct Config {
    collective: String,
    devices: Vec<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct Entry {
    size: u64,
    #[serde(rename = "type")]
    dtype: String,
    out_of_place: Option<Timing>,
    in_place: Option<Timing>,
}

#[derive(Deserialize)]
struct Timing {
    #[serde(alias = "cpu_time")]
    time: f64,
}

/// Reads a JSON report of a collective; uses the in-place times if there are any.
pub(super) fn read(path: &Path, collective: &str) -> Result<Vec<Point>, Error> {
    let refused = |why: String| Error::usage(format!("--measured {}: {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| refused(error.to_string()))?;
    let document: Document = serde_json::from_str(&text).map_err(|error| {
        refused(format!(
            "not a finished report of spark-perf or nccl-tests: {error}"
        ))
    })?;
    let plain = |name: &str| name.to_ascii_lowercase().replace('_', "");
    if plain(&document.config.collective) != plain(collective) {
        return Err(refused(format!(
            "a report of {}; the model is of {collective}",
            document.config.collective
        )));
    }
    let ranks = document.config.devices.len() as u32;
    let point = |entry: Entry| {
        let timing = entry.in_place.or(entry.out_of_place)?;
        Some(Point {
            ranks,
            bytes: entry.size,
            dtype: entry.dtype,
            us: timing.time,
        })
    };
    let points: Vec<_> = document.results.into_iter().filter_map(point).collect();
    if ranks == 0 || points.is_empty() {
        return Err(refused("there is no measured time in it".into()));
    }
    Ok(points)
}
