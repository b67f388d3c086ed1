//! What is measured over rails, as lines of a table and as JSON.

use std::fmt::Write as _;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::args::MemoryKind;
use crate::report::stats::PerIteration;

/// What a rank has measured for one size.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Seen {
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: f64,
    /// The number of requests by rail.
    pub(crate) carried: Vec<u64>,
    /// The number of wrong bytes.
    pub(crate) wrong: u64,
}

/// A whole measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured<R> {
    /// What was measured, in words.
    pub(crate) what: String,
    /// Older reports have none.
    #[serde(default)]
    pub(crate) memory: MemoryKind,
    pub(crate) rails: Vec<RailEnds>,
    pub(crate) rows: Vec<R>,
}

/// A rail.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RailEnds {
    /// The port or interface of rank 0, with its address, and that of rank 1.
    pub(crate) ends: [String; 2],
    /// Why its sockets are not bound to these interfaces, although others share their subnet: then
    /// routes, and not the rail, choose what carries the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unbound: Option<String>,
    /// Half of it is the latency of one byte; `None` where another command measures it.
    pub(crate) round_trip_us: Option<f64>,
}

impl RailEnds {
    pub(crate) fn name(&self) -> String {
        self.ends.join(" to ")
    }
}

/// The bandwidth for one size over some of the rails.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct BandwidthRow {
    pub(crate) bytes: u64,
    /// The numbers of the rails, and the requests that each has carried.
    pub(crate) rails: Vec<usize>,
    pub(crate) carried: Vec<u64>,
    pub(crate) seconds: f64,
    /// 10^9 bytes, both directions together.
    pub(crate) gb_per_s: f64,
    pub(crate) cpu_us_per_mib: f64,
    pub(crate) wrong: u64,
}

impl BandwidthRow {
    pub(crate) const HEAD: &str = "\
#       size  rails    requests        time      GB/s      Gb/s        CPU  #wrong
#        (B)                           (us)                       (us/MiB)
";

    /// Combines what both ranks have seen.
    pub(crate) fn of(bytes: u64, rails: Range<usize>, all: &[Seen]) -> Self {
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
    pub(crate) fn text(&self) -> String {
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
pub(crate) struct LatencyRow {
    pub(crate) bytes: u64,
    pub(crate) rail: usize,
    pub(crate) iterations: usize,
    pub(crate) min_us: f64,
    pub(crate) median_us: f64,
    pub(crate) mean_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) max_us: f64,
    pub(crate) wrong: u64,
}

impl LatencyRow {
    pub(crate) const HEAD: &str = "\
#       size  rail  iterations       min    median      mean       99%       max  #wrong
#        (B)                        (us)      (us)      (us)      (us)      (us)
";

    pub(crate) fn new(bytes: u64, rail: usize, times: Vec<f64>, wrong: u64) -> Self {
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

    pub(crate) fn text(&self) -> String {
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
