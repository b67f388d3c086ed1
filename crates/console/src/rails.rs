//! The JSON of a measurement over the rails between two ranks.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Which memory is sent and received.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemoryKind {
    /// Ordinary memory of the host
    #[default]
    Host,
    /// Memory of the host that CUDA has pinned, and that the GPU reaches
    Pinned,
}

impl MemoryKind {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host memory",
            Self::Pinned => "pinned memory",
        }
    }
}

/// A whole measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured<R> {
    /// The measurement in words.
    pub what: String,
    /// Older reports have none.
    #[serde(default)]
    pub memory: MemoryKind,
    /// The rails, by whose numbers rows name them.
    pub rails: Vec<RailEnds>,
    /// The results, in the order in which they were measured.
    pub rows: Vec<R>,
}

/// A rail.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RailEnds {
    /// The port or interface of rank 0, with its address, and that of rank 1.
    pub ends: [String; 2],
    /// Why its sockets are not bound to these interfaces, although others share their subnet: then
    /// routes, and not the rail, choose what carries the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unbound: Option<String>,
    /// Half of it is the latency of one byte; `None` where another command measures it.
    pub round_trip_us: Option<f64>,
}

impl RailEnds {
    /// Both ends.
    pub fn name(&self) -> String {
        self.ends.join(" to ")
    }
}

/// The bandwidth for one size over some of the rails.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BandwidthRow {
    /// The bytes of a request.
    pub bytes: u64,
    /// The numbers of the rails.
    pub rails: Vec<usize>,
    /// The requests that each of them has carried.
    pub carried: Vec<u64>,
    /// How long it took.
    pub seconds: f64,
    /// 10^9 bytes, both directions together.
    pub gb_per_s: f64,
    /// The processor time of both ranks for 1 MiB, in microseconds.
    pub cpu_us_per_mib: f64,
    /// The number of wrong bytes.
    pub wrong: u64,
}

/// The latency for one size over one rail, in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LatencyRow {
    /// The bytes of a message.
    pub bytes: u64,
    /// The number of the rail.
    pub rail: usize,
    /// How many messages were measured.
    pub iterations: usize,
    /// The shortest.
    pub min_us: f64,
    /// The median.
    pub median_us: f64,
    /// The mean.
    pub mean_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
    /// The number of wrong bytes.
    pub wrong: u64,
}
