//! The JSON report of a measurement, as far as others read it. `crates/perf/src/report/json.rs`
//! writes it.

use serde::{Deserialize, Serialize};

/// A JSON report of spark-perf or nccl-tests, as far as others use it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Document {
    /// The rows of the table.
    pub results: Vec<Entry>,
}

/// A row of the table.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Entry {
    /// The executor of the calls; nccl-tests names none.
    pub backend: Option<String>,
    /// The bytes of a rank's larger buffer.
    pub size: u64,
    /// The name of the element type.
    #[serde(rename = "type")]
    pub dtype: String,
    /// The name of the operation.
    pub redop: String,
    /// The root, or -1.
    pub root: String,
    /// Times of a call with two buffers.
    pub out_of_place: Option<Timing>,
    /// Times of a call in one buffer.
    pub in_place: Option<Timing>,
}

/// The result for one mode.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Timing {
    /// In microseconds. nccl-tests omits it with `-C`.
    pub time: Option<f64>,
    /// In GB/s.
    pub bus_bw: f64,
    /// The number of wrong elements; nothing, or a text, where they were not counted.
    #[serde(default)]
    nwrong: serde_json::Value,
}

impl Document {
    /// Whether there are results, and the wrong elements of each were counted.
    pub fn is_verified(&self) -> bool {
        let counted = |timing: &Timing| timing.nwrong.is_u64();
        let is_whole = |row: &Entry| {
            row.out_of_place.as_ref().is_some_and(counted)
                && row.in_place.as_ref().is_none_or(counted)
        };
        !self.results.is_empty() && self.results.iter().all(is_whole)
    }

    /// The number of wrong elements over all rows.
    pub fn wrong(&self) -> u64 {
        let rows = self.results.iter();
        let modes = rows.flat_map(|row| [&row.out_of_place, &row.in_place]);
        let wrong = modes.flatten().filter_map(|timing| timing.nwrong.as_u64());
        wrong.sum()
    }
}
