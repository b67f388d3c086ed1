//! Judges which data crossed which interface, by the kernel's counters.

use std::collections::BTreeSet;

use serde::Serialize;
use spark_ccl_topology::cluster::{Evidence, HostRail, RailEnd};
use spark_ccl_topology::{Cluster, Host, Netdev};

use crate::finding::{Finding, Fix, Problem};

const ID: &str = "check.traffic";
/// The bytes that ssh and the rendezvous may send over other interfaces; the part of the data that
/// may go there, too; and the most that this part may be.
const SMALL: f64 = 8e6;
const PART: f64 = 0.02;
const MOST: f64 = 200e6;
/// The sockets of a link over TCP between hosts: the library's default.
const CONNECTIONS: usize = 2;
/// `port_xmit_data` counts words of four bytes.
const WORD: u64 = 4;

/// The bytes that an interface or an RDMA port has sent and received.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Traffic {
    pub(super) host: String,
    /// An interface, or an RDMA port.
    pub(super) name: String,
    pub(super) rail: bool,
    pub(super) sent: u64,
    pub(super) received: u64,
}

/// A direction, and the bytes that went that way.
type Way = (&'static str, fn(&Traffic) -> u64);
/// Each is judged: a network that is idle one way delays all.
const WAYS: [Way; 2] = [("sent", |one| one.sent), ("received", |one| one.received)];

/// The bytes that a host has counted between two readings, without loopback. An interface without a
/// counter in both readings is left out. So is one above or below a rail's, whose bytes would count
/// twice.
pub(super) fn between(
    cluster: &Cluster<'_>,
    index: usize,
    then: &Host,
    now: &Host,
) -> Vec<Traffic> {
    let ends: Vec<_> = ends(cluster, index).collect();
    let is_rail = |netdev: &str| ends.iter().any(|(end, _)| end.netdev == netdev);
    // Bonds, VLANs and bridges have the hardware address of an interface below them.
    let rails = now.network.netdevs.iter().filter(|one| is_rail(&one.name));
    let macs: BTreeSet<_> = rails.filter_map(|one| one.mac.as_ref()).collect();
    let is_layer = |one: &Netdev| {
        !is_rail(&one.name) && one.mac.as_ref().is_some_and(|mac| macs.contains(mac))
    };
    let row = |name: String, rail, sent, received| Traffic {
        host: now.name.clone(),
        name,
        rail,
        sent,
        received,
    };
    let mut found = Vec::new();
    let netdevs = now.network.netdevs.iter();
    for netdev in netdevs.filter(|one| !one.loopback && !is_layer(one)) {
        let old = then.netdev(&netdev.name).and_then(|it| it.traffic);
        let grown = old.zip(netdev.traffic).and_then(|(old, new)| {
            let sent = new.sent.checked_sub(old.sent)?;
            Some((sent, new.received.checked_sub(old.received)?))
        });
        let rail = is_rail(&netdev.name);
        found.extend(grown.map(|(sent, received)| row(netdev.name.clone(), rail, sent, received)));
    }
    for (device, port) in now.ports() {
        let rail = ends.iter().any(|(end, _)| end.device == device.name);
        if !rail && now.netdev_of(port).is_some_and(is_layer) {
            continue;
        }
        let mut ports = then.ports();
        let old = ports.find(|(it, old)| it.name == device.name && old.number == port.number);
        let grown = |name: &str| {
            let old = old?.1.counters.get(name)?;
            let words = port.counters.get(name)?.checked_sub(*old)?;
            Some(words.saturating_mul(WORD))
        };
        let both = grown("port_xmit_data").zip(grown("port_rcv_data"));
        let name = format!("{}:{}", device.name, port.number);
        found.extend(both.map(|(sent, received)| row(name, rail, sent, received)));
    }
    found
}

/// A host's ends of rails that answer, each with the index of the host at the other end.
fn ends<'a>(cluster: &'a Cluster<'_>, index: usize) -> impl Iterator<Item = (&'a RailEnd, usize)> {
    let answering = |rail: &&HostRail| rail.evidence != Evidence::Silent;
    let ends = cluster.rails.iter().filter(answering).flat_map(|rail| {
        let [a, b] = &rail.ends;
        [(a, b.host), (b, a.host)]
    });
    ends.filter(move |(end, _)| end.host == index)
}

/// Whether the rails of a host have carried the data of the collectives, each a part, and other
/// interfaces little.
pub(super) fn judge(
    cluster: &Cluster<'_>,
    index: usize,
    traffic: &[Traffic],
    moved: f64,
) -> Finding {
    let host = cluster.hosts[index].name.as_str();
    let unknown = |seen: String| {
        let look = "spark-perf topo --json on this host, and what else was found; then run the check again";
        Finding::unknown(ID, &[host], seen, look)
    };
    if moved <= 0.0 {
        return unknown("no collective has moved anything".to_owned());
    }
    if ends(cluster, index).next().is_none() {
        return unknown("no rail of this host is known".to_owned());
    }
    let rails = traffic.iter().filter(|one| one.rail);
    let is_short = WAYS
        .iter()
        .any(|(_, of)| (sum(rails.clone().map(of)) as f64) < 0.9 * moved);
    let idle = idle(cluster, index, traffic, moved);
    if is_short || !idle.is_empty() {
        let missing = missing(cluster, index, traffic);
        if !missing.is_empty() {
            return unknown(format!(
                "no byte counter of {}",
                missing.into_iter().collect::<Vec<_>>().join(", ")
            ));
        }
        let rails = most_rails(cluster, index);
        let is_over_tcp = idle.iter().all(|(end, _)| end.device == end.netdev);
        return if !is_short && is_over_tcp && rails > CONNECTIONS {
            Finding::warn(ID, &[host], short_of_connections(traffic, &idle, rails))
        } else {
            Finding::fail(ID, &[host], astray(traffic, &idle, moved))
        };
    }
    others(host, traffic, moved)
}

/// Whether other interfaces than the rails have carried little.
fn others(host: &str, traffic: &[Traffic], moved: f64) -> Finding {
    let most = f64::min(SMALL + PART * moved, MOST);
    let is_stray = |one: &&Traffic| !one.rail && one.sent.max(one.received) as f64 > most;
    let stray: Vec<_> = traffic.iter().filter(is_stray).collect();
    let rails = names(traffic.iter().filter(|one| one.rail));
    let moved = bytes(moved);
    if stray.is_empty() {
        let others = traffic.iter().filter(|one| !one.rail);
        let most = others.map(|one| one.sent.max(one.received)).max();
        let seen = format!(
            "the collectives' {moved} crossed the rails ({rails}); over each other interface at \
             most {}",
            bytes(most.unwrap_or(0) as f64)
        );
        return Finding::ok(ID, &[host], seen);
    }
    let problem = Problem::new(
        format!(
            "the collectives' {moved} crossed the rails ({rails}); over other interfaces: {}",
            names(stray.into_iter())
        ),
        "little over other interfaces meanwhile",
        "another program was using the network, or a part of the data takes a slower way",
        Fix::look("which program sends there (ss -tip), and spark-perf env"),
    );
    Finding::warn(ID, &[host], problem)
}

/// There are more rails to a host than connections of a link over TCP.
fn short_of_connections(traffic: &[Traffic], idle: &[Idle<'_>], rails: usize) -> Problem {
    Problem::new(
        format!(
            "over the rails: {}{}",
            names(traffic.iter().filter(|one| one.rail)),
            idle_names(idle)
        ),
        "a part over each",
        format!(
            "a link over TCP has {CONNECTIONS} connections, unless SPARK_CCL_SOCKETS says \
             otherwise, and each takes one rail"
        ),
        Fix::look(format!(
            "SPARK_CCL_SOCKETS={rails} on all ranks; or SPARK_CCL_SOCKET_IFNAME, where an \
             interface is not meant for this"
        )),
    )
}

/// The rails have carried too little.
fn astray(traffic: &[Traffic], idle: &[Idle<'_>], moved: f64) -> Problem {
    Problem::new(
        format!(
            "over the rails: {}{}; over other interfaces: {}; the collectives moved {}",
            names(traffic.iter().filter(|one| one.rail)),
            idle_names(idle),
            names(traffic.iter().filter(|one| !one.rail)),
            bytes(moved)
        ),
        "all of it over the rails, a part over each, both ways",
        "the data takes a slower way than the one that was built for it, and disturbs others there",
        Fix::look(
            "net.subnets above, where interfaces share a subnet; spark-perf env, and what \
             NCCL_SOCKET_IFNAME, SPARK_CCL_SOCKET_IFNAME and NCCL_IB_DISABLE are set to",
        ),
    )
}

/// The end of a rail, and the direction in which it is idle.
type Idle<'a> = (&'a RailEnd, &'static str);

fn idle_names(idle: &[Idle<'_>]) -> String {
    if idle.is_empty() {
        return String::new();
    }
    let name = |(end, way): &Idle<'_>| format!("{way} by {}", end.device);
    let names: Vec<_> = idle.iter().map(name).collect();
    format!("; as good as nothing: {}", names.join(", "))
}

/// The most rails from a host to another one.
fn most_rails(cluster: &Cluster<'_>, index: usize) -> usize {
    let to = |peer| ends(cluster, index).filter(move |(_, host)| *host == peer);
    let rails = (0..cluster.hosts.len()).map(|peer| to(peer).count());
    rails.max().unwrap_or(0)
}

/// The rails that carry nothing one way while another to the same host carries something. A ring
/// does not join all hosts, and may use a cable one way only: where all rails to a host are idle,
/// nothing is wrong.
fn idle<'a>(
    cluster: &'a Cluster<'_>,
    index: usize,
    traffic: &[Traffic],
    moved: f64,
) -> Vec<Idle<'a>> {
    let mut found = Vec::new();
    for peer in 0..cluster.hosts.len() {
        let to_peer = ends(cluster, index).filter(|(_, host)| *host == peer);
        let rails: Vec<_> = to_peer.map(|(end, _)| end).collect();
        let least = PART * moved / rails.len() as f64;
        for (way, of) in WAYS {
            let carried = |end: &RailEnd| sum(traffic.iter().filter(|one| is_of(one, end)).map(of));
            let (busy, idle): (Vec<_>, Vec<_>) =
                rails.iter().partition(|end| carried(end) as f64 > least);
            if !busy.is_empty() {
                found.extend(idle.into_iter().map(|end| (end, way)));
            }
        }
    }
    found
}

/// A host may have counted anything.
fn sum(all: impl Iterator<Item = u64>) -> u64 {
    all.fold(0, u64::saturating_add)
}

/// The interfaces and RDMA devices of rails without a counter.
fn missing<'a>(cluster: &'a Cluster<'_>, index: usize, traffic: &[Traffic]) -> BTreeSet<&'a str> {
    let names = ends(cluster, index).flat_map(|(end, _)| [&*end.netdev, &*end.device]);
    names
        .filter(|name| !traffic.iter().any(|one| device(one) == *name))
        .collect()
}

fn is_of(one: &Traffic, end: &RailEnd) -> bool {
    [&end.netdev, &end.device]
        .iter()
        .any(|name| device(one) == **name)
}

/// The interface, or the RDMA device without its port.
fn device(one: &Traffic) -> &str {
    one.name.split(':').next().unwrap_or_default()
}

fn names<'a>(all: impl Iterator<Item = &'a Traffic>) -> String {
    let each: Vec<_> = all
        .map(|one| {
            let [sent, received] = [one.sent, one.received].map(|count| bytes(count as f64));
            format!("{} {sent} out and {received} in", one.name)
        })
        .collect();
    if each.is_empty() {
        return "nothing".to_owned();
    }
    each.join(", ")
}

/// A number of bytes for people.
pub(super) fn bytes(count: f64) -> String {
    match count {
        count if count >= 1e9 => format!("{:.1} GB", count / 1e9),
        count if count >= 1e6 => format!("{:.1} MB", count / 1e6),
        count => format!("{:.0} kB", count / 1e3),
    }
}
