//! What joins two hosts: the rails between them, and both ends of each.

use std::collections::BTreeSet;

use spark_ccl_topology::cages::CageEnd;
use spark_ccl_topology::cluster::{Evidence, HostRail, RailEnd, Shape};
use spark_ccl_topology::{Cluster, Host, Netdev, cages};

use super::addresses::{alone, proposal};
use crate::doctor::finding::{Finding, Problem};

/// What of a cable's rate is data: 23.7 GB/s were measured of 200 Gbit/s; and of a PCIe link's: 111.9 Gbit/s of 126.
const OF_CABLE: f64 = 0.948;
const OF_PCIE: f64 = 0.888;

pub(super) fn checks(cluster: &Cluster<'_>) -> Vec<Finding> {
    let pairs: BTreeSet<_> = cluster.rails.iter().map(HostRail::hosts).collect();
    let mut found = Vec::new();
    for [a, b] in pairs {
        let rails: Vec<_> = cluster.between(a, b).collect();
        found.push(joined(cluster, &rails));
        for rail in &rails {
            found.extend(mtus(cluster, rail));
            found.extend(silent(cluster, rail));
        }
    }
    if cluster.hosts.len() > 1 {
        found.extend(unmatched(cluster));
    }
    found
}

/// The rails of a pair, and what they should carry together.
fn joined(cluster: &Cluster<'_>, rails: &[&HostRail]) -> Finding {
    let names = names(cluster, rails[0]);
    let kind = if rails[0].rdma { "RDMA" } else { "TCP" };
    let list: Vec<_> = rails
        .iter()
        .map(|rail| format!("{} to {}", rail.ends[0].gid.ip(), rail.ends[1].gid.ip()))
        .collect();
    let expected = expected(cluster, rails);
    let expected = expected.map_or_else(String::new, |bytes| format!("; expect {bytes:.1} GB/s"));
    let seen = format!("{kind} from {}{expected}", list.join(" and "));
    Finding::ok("pair.rails", &names, seen)
}

/// Gigabytes of data per second over all rails: what either end can carry, whichever is less.
fn expected(cluster: &Cluster<'_>, rails: &[&HostRail]) -> Option<f64> {
    let ends = [0, 1].map(|side| {
        let ends: Vec<_> = rails.iter().map(|rail| &rail.ends[side]).collect();
        carried(&cluster.hosts[ends[0].host], &ends)
    });
    Some(ends[0]?.min(ends[1]?) / 8.0)
}

/// Gbit/s of data that the cages of these ends carry: over their cables, or over PCIe, whichever is less.
fn carried(host: &Host, ends: &[&RailEnd]) -> Option<f64> {
    let mut all = 0.0;
    for cage in cages(host) {
        let used = |one: &&CageEnd<'_>| ends.iter().any(|end| end.device == one.device.name);
        let used: Vec<_> = cage.ends.iter().filter(used).collect();
        if !used.is_empty() {
            let links = used
                .iter()
                .map(|end| Some(end.pcie(host)?.gbits() * OF_PCIE));
            let pcie: Option<f64> = links.sum();
            all += (cage.gbits()? * OF_CABLE).min(pcie.unwrap_or(f64::INFINITY));
        }
    }
    (all > 0.0).then_some(all)
}

fn mtus(cluster: &Cluster<'_>, rail: &HostRail) -> Option<Finding> {
    let ends = [0, 1].map(|side| netdev(cluster, &rail.ends[side]));
    let [Some(a), Some(b)] = ends else {
        return None;
    };
    if a.mtu == b.mtu {
        return None;
    }
    let low = usize::from(b.mtu < a.mtu);
    let (host, netdev) = (names(cluster, rail)[low], [a, b][low]);
    Some(Finding::fail(
        "pair.mtu",
        &names(cluster, rail),
        Problem {
            seen: format!("{} has {}, {} has {}", a.name, a.mtu, b.name, b.mtu),
            wanted: "one MTU at both ends of a cable".to_owned(),
            why: "long packets of one end are dropped at the other, and operations stall"
                .to_owned(),
            fix: format!(
                "on {host}: sudo ip link set {} mtu {}",
                netdev.name,
                a.mtu.max(b.mtu)
            ),
        },
    ))
}

/// An end that has asked for the other one, and got no answer.
fn silent(cluster: &Cluster<'_>, rail: &HostRail) -> Option<Finding> {
    if rail.evidence != Evidence::Silent {
        return None;
    }
    let [a, b] = &rail.ends;
    let names = names(cluster, rail);
    Some(Finding::fail(
        "pair.reach",
        &names,
        Problem {
            seen: format!("{} of {} does not answer {} of {}", b.gid.ip(), b.netdev, a.gid.ip(), a.netdev),
            wanted: "an answer".to_owned(),
            why: "the addresses are in one subnet, but no cable joins these interfaces, or the other end is down".to_owned(),
            fix: format!("on {}: ping -c 3 -I {} {}; then look where the cable of {} leads", names[0], a.netdev, b.gid.ip(), a.netdev),
        },
    ))
}

/// Interfaces with an address that lead to no other of the hosts.
fn unmatched(cluster: &Cluster<'_>) -> Vec<Finding> {
    let all = (0..cluster.hosts.len()).flat_map(|index| {
        let own = alone(cluster, index).into_iter();
        own.map(move |(netdev, ip, prefix)| (index, netdev, format!("{ip}/{prefix}")))
    });
    all.map(|(index, netdev, own)| {
        let host = &cluster.hosts[index];
        let problem = apart(netdev, &own, &proposal(cluster, index));
        // An interface without RDMA may be meant for something else.
        if host.rdma.is_empty() && cluster.shape != Shape::Apart {
            Finding::warn("net.subnet", &[&host.name], problem)
        } else {
            Finding::fail("net.subnet", &[&host.name], problem)
        }
    })
    .collect()
}

fn apart(netdev: &Netdev, own: &str, proposal: &str) -> Problem {
    let name = &netdev.name;
    Problem {
        seen: format!(
            "{name} has {own}, and no other of these hosts has an address in that subnet"
        ),
        wanted: "both ends of a cable in one subnet".to_owned(),
        why: "ports are matched by their subnets, so this one carries nothing".to_owned(),
        fix: format!("sudo ip addr del {own} dev {name} && sudo ip addr add {proposal} dev {name}"),
    }
}

fn netdev<'a>(cluster: &Cluster<'a>, end: &RailEnd) -> Option<&'a Netdev> {
    cluster.hosts[end.host].netdev(&end.netdev)
}

/// The names of the hosts of a rail.
fn names<'a>(cluster: &Cluster<'a>, rail: &HostRail) -> [&'a str; 2] {
    rail.hosts().map(|host| cluster.hosts[host].name.as_str())
}
