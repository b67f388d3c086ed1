//! What is measured over the rails between two ranks, as lines of a table and as JSON.

use std::fmt::Write as _;
use std::ops::Range;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::stats::PerIteration;

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

/// What a rank has measured for one size.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Seen {
    /// From the first request to the end of the last.
    pub seconds: f64,
    /// The processor time of that.
    pub cpu_seconds: f64,
    /// The number of requests by rail.
    pub carried: Vec<u64>,
    /// The number of wrong bytes.
    pub wrong: u64,
}

/// A whole measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured<R> {
    /// What was measured, in words.
    pub what: String,
    /// Older reports have none.
    #[serde(default)]
    pub memory: MemoryKind,
    /// The rails, by whose numbers rows name them.
    pub rails: Vec<RailEnds>,
    /// What was measured, in that order.
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

impl BandwidthRow {
    /// The head of the table.
    pub const HEAD: &str = "\
#       size  rails    requests        time      GB/s      Gb/s        CPU  #wrong
#        (B)                           (us)                       (us/MiB)
";

    /// Combines what both ranks have seen.
    pub fn of(bytes: u64, rails: Range<usize>, all: &[Seen]) -> Self {
        let of_rail = |rail: usize| all.iter().map(|seen| seen.carried[rail]).sum();
        let carried: Vec<u64> = (0..rails.len()).map(of_rail).collect();
        let requests: u64 = carried.iter().sum();
        let drivers = all
            .iter()
            .filter(|seen| seen.carried.iter().sum::<u64>() > 0);
        let seconds = drivers.map(|seen| seen.seconds).fold(0.0, f64::max);
        let cpu: f64 = all.iter().map(|seen| seen.cpu_seconds).sum();
        let mib = (requests * bytes) as f64 / f64::from(1 << 20);
        Self {
            bytes,
            rails: rails.collect(),
            carried,
            seconds,
            gb_per_s: rate(requests * bytes, seconds),
            cpu_us_per_mib: cpu * 1e6 / mib,
            wrong: all.iter().map(|seen| seen.wrong).sum(),
        }
    }

    /// A line, and one for each of several rails.
    pub fn text(&self) -> String {
        let Self {
            bytes,
            carried,
            wrong,
            ..
        } = self;
        let requests: u64 = carried.iter().sum();
        let mut text = format!(
            "{bytes:>12} {:>6} {requests:>11} {:>11.1} {:>9.4} {:>9.3} {:>10.2} {wrong:>7}\n",
            self.rails.len(),
            self.seconds * 1e6,
            self.gb_per_s,
            self.gb_per_s * 8.0,
            self.cpu_us_per_mib,
        );
        let several = self.rails.len() > 1 || self.rails != [0];
        for (rail, requests) in self.rails.iter().zip(carried).filter(|_| several) {
            let rate = rate(requests * bytes, self.seconds);
            let _ = writeln!(
                text,
                "#    rail {rail:>2}        {requests:>11}             {rate:>9.4} {:>9.3}",
                rate * 8.0
            );
        }
        text
    }
}

fn rate(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 / seconds / 1e9
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

impl LatencyRow {
    /// The head of the table.
    pub const HEAD: &str = "\
#       size  rail  iterations       min    median      mean       99%       max  #wrong
#        (B)                        (us)      (us)      (us)      (us)      (us)
";

    /// A row for these times.
    pub fn new(bytes: u64, rail: usize, times: Vec<f64>, wrong: u64) -> Self {
        let stats = PerIteration::new(times, 0);
        Self {
            bytes,
            rail,
            iterations: stats.times_us.len(),
            min_us: stats.min_us,
            median_us: stats.p50_us,
            mean_us: stats.avg_us,
            p99_us: stats.p99_us,
            max_us: stats.max_us,
            wrong,
        }
    }

    /// Its line.
    pub fn text(&self) -> String {
        let Self {
            bytes,
            rail,
            iterations,
            min_us,
            median_us,
            mean_us,
            p99_us,
            max_us,
            wrong,
        } = self;
        format!(
            "{bytes:>12} {rail:>5} {iterations:>11} {min_us:>9.2} {median_us:>9.2} {mean_us:>9.2} \
             {p99_us:>9.2} {max_us:>9.2} {wrong:>7}\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_add_up() {
        let seen = |seconds, carried: &[u64]| Seen {
            seconds,
            cpu_seconds: 0.5,
            carried: carried.to_vec(),
            wrong: 1,
        };
        let row = |rails, all: &[Seen]| BandwidthRow::of(1 << 20, rails, all).text();
        let text = row(0..2, &[seen(1.0, &[75, 25]), seen(9.0, &[0, 0])]);
        let rows: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        let total = [
            "1048576",
            "2",
            "100",
            "1000000.0",
            "0.1049",
            "0.839",
            "10000.00",
            "2",
        ];
        assert_eq!(rows[0], total);
        assert_eq!(rows[1], ["#", "rail", "0", "75", "0.0786", "0.629"]);
        assert_eq!(rows[2], ["#", "rail", "1", "25", "0.0262", "0.210"]);
        let both = row(0..1, &[seen(1.0, &[50]), seen(2.0, &[50])]);
        assert_eq!(both.lines().count(), 1);
        assert!(both.contains(" 2000000.0 "), "{both}");
        let second = row(1..2, &[seen(1.0, &[50]), seen(2.0, &[0])]);
        assert!(second.contains("rail  1 "), "{second}");
    }
}
