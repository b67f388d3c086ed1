//! Parts 1 and 2: the rates of rails, one way and both, and the order of writes.

use spark_ccl_console::rails::{BandwidthRow, Measured, RailEnds};
use spark_ccl_topology::cluster::HostRail;

use super::Check;
use super::bench::{Bench, NO_RDMA};
use crate::doctor::expected;
use crate::finding::Status;

/// The most by which the latencies of two rails of a pair may differ.
const ALIKE: f64 = 1.2;
/// The rate of a Spark's function one way, in GB/s. A function with this rate counts as a Spark's.
const SPARK: std::ops::Range<f64> = 11.5..12.5;
/// The rate that it must carry both ways together, in Gbit/s; others have seen 213.
const LEAST_BOTH: f64 = 190.0;

pub(super) fn latency(bench: &Bench<'_>) -> Check {
    let check = Check::new(
        "latency of RDMA",
        "the same on all rails within 20 %; no figure of a Spark is known",
    );
    let check = check.by(bench.line("rdma_lat"));
    let (mut seen, mut medians) = (Vec::new(), Vec::new());
    for pair in bench.probed.iter().flat_map(|probed| &probed.pairs) {
        match &pair.latency {
            None => {}
            Some(Err(why)) => return check.is(Status::Fail, why),
            Some(Ok(measured)) => {
                for row in &measured.rows {
                    medians.push(row.median_us);
                    let name = measured
                        .rails
                        .get(row.rail)
                        .map_or_else(String::new, RailEnds::name);
                    seen.push(format!(
                        "{name}: {:.2} us for {} B, 99% below {:.2}",
                        row.median_us, row.bytes, row.p99_us
                    ));
                }
            }
        }
    }
    let least = medians.iter().copied().fold(f64::INFINITY, f64::min);
    match medians.into_iter().reduce(f64::max) {
        None => check.could_not(bench.obstacle().unwrap_or_else(|| NO_RDMA.to_owned())),
        Some(most) if most > ALIKE * least => check.is(Status::Warn, seen.join("; ")),
        Some(_) => check.is(Status::Ok, seen.join("; ")),
    }
}

pub(super) fn one_way(bench: &Bench<'_>) -> Check {
    let check = Check::new(
        "bandwidth of RDMA",
        "12 GB/s over each function of a Spark, 23.7 over both",
    );
    if bench.rdma_rails().next().is_none() {
        return check
            .by(bench.line("rdma_bw --rails each"))
            .could_not(NO_RDMA);
    }
    bench.found(check, &["probe.rdma"])
}

pub(super) fn both_ways(bench: &Bench<'_>) -> Check {
    const PROGRAM: &str =
        "rdma_bw --rails each --bidirectional -b 1M -e 1M -n 1000000 -w 16 --seconds 1 -T 10";
    let expected = format!(
        "213 Gbit/s over each function of a Spark, at least {LEAST_BOTH:.0}: a bad cable shows \
         here alone"
    );
    let check = Check::new("both ways at once", expected).by(bench.line(PROGRAM));
    if let Some(why) = bench.obstacle() {
        return check.could_not(why);
    }
    let mut pairs: Vec<_> = bench.rdma_rails().map(HostRail::hosts).collect();
    pairs.dedup();
    let (mut status, mut seen) = (Status::Ok, Vec::new());
    for pair in pairs {
        let asked: Result<Measured<BandwidthRow>, String> =
            bench.launcher.ask(&pair, &format!("{PROGRAM} --json"));
        match asked {
            Err(why) => return check.is(Status::Fail, why),
            Ok(measured) => {
                for row in &measured.rows {
                    let (own, told) = judged(bench, pair, &measured, row);
                    status = status.max(own);
                    seen.push(told);
                }
            }
        }
    }
    if seen.is_empty() {
        return check.could_not(NO_RDMA);
    }
    check.is(status, seen.join("; "))
}

/// Whether a row is as expected, and its text. An expected rate is known for a Spark's function
/// only.
fn judged(
    bench: &Bench<'_>,
    pair: [usize; 2],
    measured: &Measured<BandwidthRow>,
    row: &BandwidthRow,
) -> (Status, String) {
    let gbits = 8.0 * row.gb_per_s;
    let name = match row.rails[..] {
        // An answer of another host may name a rail that it does not list.
        [rail] => measured
            .rails
            .get(rail)
            .map_or_else(|| "?".to_owned(), RailEnds::name),
        _ => format!("{} rails together", row.rails.len()),
    };
    let told = format!("{name}: {gbits:.1} Gbit/s, {} bytes wrong", row.wrong);
    let mut rails = bench
        .cluster
        .between(pair[0], pair[1])
        .filter(|rail| rail.rdma);
    let is_spark =
        rails.all(|rail| expected(&bench.cluster, &[rail]).is_some_and(|one| SPARK.contains(&one)));
    let is_slow = row.rails.len() == 1 && is_spark && gbits < LEAST_BOTH;
    let status = if row.wrong > 0 || is_slow {
        Status::Fail
    } else {
        Status::Ok
    };
    (status, told)
}

/// Part 2: in which order a card's writes are seen.
pub(super) fn order(_: &Bench<'_>) -> Vec<Check> {
    let line = Check::new(
        "order within a line",
        "of lines of 128 bytes whose last word has come, 10^8 by function, all other words have \
         come",
    );
    let flag = Check::new(
        "data before their flag",
        "of 10^8 messages over both functions, no flag comes before its data",
    );
    let why = "no program measures this alone; a kernel that sees the flag of a slot reads the \
               slot, which a card may have written: 3.4 shows wrong data if that order is not kept";
    vec![line.could_not(why), flag.could_not(why)]
}
