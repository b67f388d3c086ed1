//! Measurements over the rails between two ranks, as rows and as lines of a table.

use std::fmt::Write as _;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use spark_ccl_console::rails::{BandwidthRow, LatencyRow};

use crate::stats::PerIteration;

/// The head of a table of bandwidths.
pub(crate) const BANDWIDTH_HEAD: &str = "\
#       size  rails    requests        time      GB/s      Gb/s        CPU  #wrong
#        (B)                           (us)                       (us/MiB)
";

/// The head of a table of latencies.
pub(crate) const LATENCY_HEAD: &str = "\
#       size  rail  iterations       min    median      mean       99%       max  #wrong
#        (B)                        (us)      (us)      (us)      (us)      (us)
";

/// A rank's measurement of one size.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// From the first request to the end of the last.
    pub(crate) seconds: f64,
    /// The processor time of that.
    pub(crate) cpu_seconds: f64,
    /// The number of requests by rail.
    pub(crate) carried: Vec<u64>,
    /// The number of wrong bytes.
    pub(crate) wrong: u64,
}

/// Combines the measurements of both ranks.
pub(crate) fn bandwidth(bytes: u64, rails: Range<usize>, all: &[Seen]) -> BandwidthRow {
    let of_rail = |rail: usize| all.iter().map(|seen| seen.carried[rail]).sum();
    let carried: Vec<u64> = (0..rails.len()).map(of_rail).collect();
    let requests: u64 = carried.iter().sum();
    let drivers = all
        .iter()
        .filter(|seen| seen.carried.iter().sum::<u64>() > 0);
    let seconds = drivers.map(|seen| seen.seconds).fold(0.0, f64::max);
    let cpu: f64 = all.iter().map(|seen| seen.cpu_seconds).sum();
    let mib = (requests * bytes) as f64 / f64::from(1 << 20);
    BandwidthRow {
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
pub(crate) fn bandwidth_text(row: &BandwidthRow) -> String {
    let BandwidthRow {
        bytes,
        carried,
        wrong,
        ..
    } = row;
    let requests: u64 = carried.iter().sum();
    let mut text = format!(
        "{bytes:>12} {:>6} {requests:>11} {:>11.1} {:>9.4} {:>9.3} {:>10.2} {wrong:>7}\n",
        row.rails.len(),
        row.seconds * 1e6,
        row.gb_per_s,
        row.gb_per_s * 8.0,
        row.cpu_us_per_mib,
    );
    let several = row.rails.len() > 1 || row.rails != [0];
    for (rail, requests) in row.rails.iter().zip(carried).filter(|_| several) {
        let rate = rate(requests * bytes, row.seconds);
        let _ = writeln!(
            text,
            "#    rail {rail:>2}        {requests:>11}             {rate:>9.4} {:>9.3}",
            rate * 8.0
        );
    }
    text
}

fn rate(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 / seconds / 1e9
}

/// A row for these times.
pub(crate) fn latency(bytes: u64, rail: usize, times: Vec<f64>, wrong: u64) -> LatencyRow {
    let stats = PerIteration::new(times, 0);
    LatencyRow {
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
pub(crate) fn latency_text(row: &LatencyRow) -> String {
    let LatencyRow {
        bytes,
        rail,
        iterations,
        min_us,
        median_us,
        mean_us,
        p99_us,
        max_us,
        wrong,
    } = row;
    format!(
        "{bytes:>12} {rail:>5} {iterations:>11} {min_us:>9.2} {median_us:>9.2} {mean_us:>9.2} \
         {p99_us:>9.2} {max_us:>9.2} {wrong:>7}\n"
    )
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
        let row = |rails, all: &[Seen]| bandwidth_text(&bandwidth(1 << 20, rails, all));
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
