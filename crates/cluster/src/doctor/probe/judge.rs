//! Judges measurements of rails and collectives.

use spark_ccl_console::{
    document::Document,
    rails::{BandwidthRow, Measured},
};
use spark_ccl_topology::cluster::HostRail;
use spark_ccl_topology::{Cluster, Netdev};

use super::{Outcome, Pair};
use crate::doctor::checks::expected;
use crate::finding::{Finding, Fix, Problem};

/// Less than this part of the expected rate is slow.
const ENOUGH: f64 = 0.85;
/// Less than this part of the fastest rail's rate is slow, if no rate is expected otherwise.
const ALIKE: f64 = 0.5;
/// A collective with less than this part of the rails' rate goes another way, or waits. Over fast
/// rails, processors allow TCP less than a third: all ranks send, receive and compute at once.
const OF_RAILS: f64 = 0.1;
/// Interfaces up to this speed, in Mbit/s, carry TCP at their rate; for faster ones, a processor is
/// too slow.
const FILLED: u32 = 25_000;
/// The part of an interface's rate that is data of TCP.
const OF_INTERFACE: f64 = 0.94;

/// The kind of a measurement.
struct Kind {
    id: &'static str,
    name: &'static str,
    rdma: bool,
}

const TCP: Kind = Kind {
    id: "probe.tcp",
    name: "TCP",
    rdma: false,
};
const RDMA: Kind = Kind {
    id: "probe.rdma",
    name: "RDMA",
    rdma: true,
};

/// The findings about two hosts.
pub(super) fn pair(cluster: &Cluster<'_>, pair: &Pair) -> Vec<Finding> {
    let mut found = judged(cluster, pair, &TCP, &pair.tcp);
    if let Some(rdma) = &pair.rdma {
        found.extend(judged(cluster, pair, &RDMA, rdma));
    }
    if let Some(Err(why)) = &pair.latency {
        found.push(failed(&RDMA, names(cluster, pair), why));
    }
    found
}

fn judged(
    cluster: &Cluster<'_>,
    pair: &Pair,
    kind: &Kind,
    outcome: &Outcome<Measured<BandwidthRow>>,
) -> Vec<Finding> {
    let names = names(cluster, pair);
    let measured = match outcome {
        Ok(measured) => measured,
        Err(why) => return vec![failed(kind, names, why)],
    };
    let alone = measured.rows.iter().filter(|row| row.rails.len() == 1);
    let fastest = alone.map(|row| row.gb_per_s).fold(0.0, f64::max);
    let row = |row: &BandwidthRow| {
        let seen = seen(pair, kind, measured, row);
        if let [rail] = row.rails[..]
            && row.wrong == 0
            && let Some(why) = &measured.rails[rail].unbound
        {
            return unbound(kind, names, &seen, why);
        }
        let wanted = wanted(cluster, pair, kind, measured, row, fastest);
        finding(kind, names, row, seen, wanted)
    };
    let mut found: Vec<_> = measured.rows.iter().map(row).collect();
    found.extend(missing(cluster, pair, kind, measured));
    found
}

/// A line's words: the rail, its round trip, and its rate.
fn seen(pair: &Pair, kind: &Kind, measured: &Measured<BandwidthRow>, row: &BandwidthRow) -> String {
    let rate = shown(row.gb_per_s, 2);
    let [rail] = row.rails[..] else {
        let count = row.rails.len();
        return format!("{}: {count} rails together: {rate}", kind.name);
    };
    let ends = &measured.rails[rail];
    let latency = pair.latency.as_ref().and_then(|it| it.as_ref().ok());
    let latency = latency.filter(|_| kind.rdma);
    let half = latency.and_then(|it| it.rows.iter().find(|row| row.rail == rail));
    let trip = half.map(|row| 2.0 * row.median_us).or(ends.round_trip_us);
    let trip = trip.map_or_else(String::new, |us| format!("round trip {us:.1} us, "));
    format!("{}: {}: {trip}{rate}", kind.name, ends.name())
}

/// A rate with this number of digits, or with more if it is slow: it is not shown as 0.
fn shown(gb_per_s: f64, digits: usize) -> String {
    let digits = if gb_per_s < 0.1 { 4 } else { digits };
    format!("{gb_per_s:.digits$} GB/s")
}

/// The rate, in GB/s, that the rails of a row should carry, and the part of it that is enough.
fn wanted(
    cluster: &Cluster<'_>,
    pair: &Pair,
    kind: &Kind,
    measured: &Measured<BandwidthRow>,
    row: &BandwidthRow,
    fastest: f64,
) -> Option<(f64, f64)> {
    let rails: Option<Vec<&HostRail>> = row
        .rails
        .iter()
        .map(|rail| of(cluster, pair, &measured.rails[*rail].ends))
        .collect();
    let figure = if kind.rdma {
        rails.and_then(|rails| expected(cluster, &rails))
    } else {
        let speeds = row.rails.iter().map(|rail| {
            let [a, b] = [0, 1].map(|side| {
                let host = &cluster.hosts[pair.hosts[side]];
                let mut netdevs = host.network.netdevs.iter();
                let end = &measured.rails[*rail].ends[side];
                netdevs.find(|one| end.starts_with(&format!("{} (", one.name)))
            });
            Some(rate(a?)?.min(rate(b?)?))
        });
        speeds.sum::<Option<f64>>()
    };
    let alike = (fastest, ALIKE);
    figure
        .map(|figure| (figure, ENOUGH))
        .or((row.rails.len() == 1).then_some(alike))
}

/// The rate of TCP over an interface of a card, in GB/s.
fn rate(netdev: &Netdev) -> Option<f64> {
    let speed = netdev.speed.filter(|speed| *speed <= FILLED)?;
    netdev.pci.as_ref()?;
    Some(f64::from(speed) / 8000.0 * OF_INTERFACE)
}

/// The rail with these ends.
fn of<'a>(cluster: &'a Cluster<'_>, pair: &Pair, ends: &[String; 2]) -> Option<&'a HostRail> {
    let [a, b] = pair.hosts;
    cluster.between(a, b).find(|rail| {
        [0, 1].iter().all(|side: &usize| {
            let device = format!("{}:", rail.ends[*side].device);
            ends[*side].starts_with(&device)
        })
    })
}

fn finding(
    kind: &Kind,
    names: [&str; 2],
    row: &BandwidthRow,
    seen: String,
    wanted: Option<(f64, f64)>,
) -> Finding {
    if row.wrong > 0 {
        let problem = Problem::new(
            format!("{seen}, {} bytes wrong", row.wrong),
            "what was sent",
            "data is damaged on its way",
            Fix::look("memory and cables: no setting makes data wrong"),
        );
        return Finding::fail(kind.id, &names, problem);
    }
    match wanted {
        Some((figure, part)) if row.gb_per_s < part * figure => {
            let tool = if kind.rdma { "rdma_bw" } else { "tcp_bw" };
            let look = format!(
                "tc qdisc show, ethtool INTERFACE, and nic.pcie and nic.errors above, on both \
                 hosts; then: spark-perf launch -H {} -- spark-perf {tool} --rails each",
                names.join(",")
            );
            let problem = Problem::new(
                seen,
                shown(figure, 1),
                "every collective waits for the slowest rail",
                Fix::look(look),
            );
            Finding::warn(kind.id, &names, problem)
        }
        _ => Finding::ok(kind.id, &names, seen),
    }
}

/// A rail whose sockets are not bound to its interfaces.
fn unbound(kind: &Kind, names: [&str; 2], seen: &str, why: &str) -> Finding {
    let problem = Problem::new(
        format!("{seen}, not bound to these interfaces: {why}"),
        "sockets that are bound to the interfaces of the rail",
        "other interfaces are in the same subnet, so routes choose what carries the data, and this \
         may be the rate of another cable",
        Fix::look("net.subnets above; without it, where the cable of the interface leads"),
    );
    Finding::warn(kind.id, &names, problem)
}

/// Rails that should be there, and do not carry.
fn missing(
    cluster: &Cluster<'_>,
    pair: &Pair,
    kind: &Kind,
    measured: &Measured<BandwidthRow>,
) -> Option<Finding> {
    let [a, b] = pair.hosts;
    let there = cluster.between(a, b).filter(|rail| rail.rdma == kind.rdma);
    let (there, carry) = (there.count(), measured.rails.len());
    (carry < there).then(|| {
        let problem = Problem::new(
            format!("{}: {carry} of {there} rails carry data", kind.name),
            "all of them",
            "the others do not answer, so their bandwidth is lost",
            Fix::look("pair.reach, pair.port and pair.mtu above"),
        );
        Finding::warn(kind.id, &names(cluster, pair), problem)
    })
}

fn failed(kind: &Kind, names: [&str; 2], why: &str) -> Finding {
    let problem = Problem::new(
        format!("{} carries nothing: {why}", kind.name),
        "a measurement",
        "ranks on these hosts will fail in the same way",
        Fix::look("what fails above, pair.port first"),
    );
    Finding::fail(kind.id, &names, problem)
}

/// The finding about the collective, where the rails of the slowest pair carry this many GB/s if
/// each carries the same.
pub(super) fn collective(
    cluster: &Cluster<'_>,
    outcome: &Outcome<Document>,
    of_rails: Option<f64>,
) -> Finding {
    const ID: &str = "probe.collective";
    let names: Vec<_> = cluster
        .hosts
        .iter()
        .map(|host| host.name.as_str())
        .collect();
    let fail = |seen: String| {
        let problem = Problem::new(
            seen,
            "right results",
            "no program can use these hosts",
            Fix::look("what fails above, pair.port first"),
        );
        Finding::fail(ID, &names, problem)
    };
    let rows = match outcome {
        Ok(document) => &document.results,
        Err(why) => return fail(format!("all_reduce fails: {why}")),
    };
    let wrong = outcome.as_ref().map_or(0, Document::wrong);
    let timed = |row: Option<&spark_ccl_console::document::Entry>| row?.out_of_place.clone();
    match (timed(rows.first()), timed(rows.last())) {
        (Some(first), Some(last)) if wrong == 0 => {
            let seen = format!(
                "all_reduce: every result right; {} B in {:.1} us, {} B at {} (busbw)",
                rows[0].size,
                first.time.unwrap_or(0.0),
                rows[rows.len() - 1].size,
                shown(last.bus_bw, 2)
            );
            match of_rails {
                Some(rate) if last.bus_bw < OF_RAILS * rate => {
                    Finding::warn(ID, &names, slower(seen, rate, &names))
                }
                _ => Finding::ok(ID, &names, seen),
            }
        }
        (Some(_), Some(_)) => fail(format!("all_reduce: {wrong} elements wrong")),
        _ => fail("all_reduce: no results".to_owned()),
    }
}

/// A collective that the rails alone do not explain.
fn slower(seen: String, of_rails: f64, names: &[&str]) -> Problem {
    let look = format!(
        "the line \"links\" of: spark-perf launch -H {} -- spark-perf all_reduce --backend host; \
         then spark-perf check, which counts what crosses which interface",
        names.join(",")
    );
    Problem::new(
        seen,
        format!(
            "more than {}, a tenth of what the rails carry",
            shown(OF_RAILS * of_rails, 2)
        ),
        "the data takes another way than the rails, or the hosts are busy",
        Fix::look(look),
    )
}

/// The names of both hosts.
fn names<'a>(cluster: &Cluster<'a>, pair: &Pair) -> [&'a str; 2] {
    pair.hosts.map(|host| cluster.hosts[host].name.as_str())
}
