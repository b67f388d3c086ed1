//! The connections of two hosts: the rails between them, and both ends of each.

use std::collections::BTreeSet;

use spark_ccl_topology::cages::CageEnd;
use spark_ccl_topology::cluster::{Evidence, HostRail, RailEnd};
use spark_ccl_topology::{Cluster, Host, Netdev, cages};

use super::addresses::{LARGE, LARGE_PACKETS};
use super::routes;
use super::wires::Wires;
use crate::finding::{Finding, Fix, Problem};

/// The part of a cable's rate that is data: 23.7 GB/s were measured of 200 Gbit/s. Then that of a
/// PCIe link's: 111.9 Gbit/s of 126.
const OF_CABLE: f64 = 0.948;
const OF_PCIE: f64 = 0.888;
/// The same where one function carries all: 12 GB/s were measured.
const OF_PCIE_ALONE: f64 = 0.762;

pub(super) fn checks(cluster: &Cluster<'_>, wires: &Wires<'_>) -> Vec<Finding> {
    let pairs: BTreeSet<_> = cluster.rails.iter().map(HostRail::hosts).collect();
    let mut found = Vec::new();
    for [a, b] in pairs {
        let rails: Vec<_> = cluster.between(a, b).collect();
        let proven = rails
            .iter()
            .copied()
            .filter(|rail| rail.evidence != Evidence::Silent);
        let proven: Vec<_> = proven.collect();
        if !proven.is_empty() {
            found.push(joined(cluster, &proven));
        }
        for rail in &rails {
            found.extend(mtus(cluster, wires, rail));
            found.extend(silent(cluster, rail));
            found.extend(routes::checks(cluster, rail));
        }
    }
    found
}

/// The rails of a pair, the evidence for them, and the rate that they should carry together.
fn joined(cluster: &Cluster<'_>, rails: &[&HostRail]) -> Finding {
    const ID: &str = "pair.rails";
    let names = names(cluster, rails[0]);
    let kind = if rails[0].rdma { "RDMA" } else { "TCP" };
    let rail = |rail: &&HostRail| {
        let [a, b] = rail.ends.each_ref().map(|end| end.gid.ip());
        format!("{a} to {b} ({})", shown_by(rail.evidence))
    };
    let list: Vec<_> = rails.iter().map(rail).collect();
    let seen = format!("{kind} from {}", list.join(" and "));
    if rails.iter().any(|rail| rail.evidence == Evidence::Perhaps) {
        let look = "spark-perf rdma_bw tries all pairs; a subnet for each cable makes them known";
        return Finding::unknown(ID, &names, seen, look);
    }
    let expected = expected(cluster, rails).map_or_else(String::new, |bytes| {
        format!(
            "; expect {bytes:.1} GB/s of: spark-perf launch -H {} -- spark-perf rdma_bw",
            names.join(",")
        )
    });
    Finding::ok(ID, &names, format!("{seen}{expected}"))
}

fn shown_by(evidence: Evidence) -> &'static str {
    match evidence {
        Evidence::Heard => "heard from",
        Evidence::Subnet => "one subnet",
        Evidence::Perhaps => "perhaps: other ports are in that subnet, too",
        Evidence::Silent => "no answer",
    }
}

/// The data rate over all RDMA rails in GB/s: the lesser of what the two ends can carry. Short
/// packets reduce it by an amount that has not been measured.
pub(crate) fn expected(cluster: &Cluster<'_>, rails: &[&HostRail]) -> Option<f64> {
    let mut all = rails.iter().flat_map(|rail| &rail.ends);
    let is_long = |end: &RailEnd| netdev(cluster, end).is_some_and(|one| one.mtu >= LARGE_PACKETS);
    if !rails.first()?.rdma || !all.all(is_long) {
        return None;
    }
    let ends = [0, 1].map(|side| {
        let ends: Vec<_> = rails.iter().map(|rail| &rail.ends[side]).collect();
        carried(&cluster.hosts[ends[0].host], &ends)
    });
    Some(ends[0]?.min(ends[1]?) / 8.0)
}

/// Gbit/s of data that these ends carry: over their cables, or over PCIe, whichever is less. The
/// functions of one PCI device share its link.
fn carried(host: &Host, ends: &[&RailEnd]) -> Option<f64> {
    let of_pcie = if ends.len() == 1 {
        OF_PCIE_ALONE
    } else {
        OF_PCIE
    };
    let mut slots = BTreeSet::new();
    let (mut cables, mut pcie) = (0.0, 0.0);
    for cage in cages(host) {
        let used = |one: &&CageEnd<'_>| ends.iter().any(|end| end.device == one.device.name);
        let used: Vec<_> = cage.ends.iter().filter(used).collect();
        if used.is_empty() {
            continue;
        }
        cables += cage.gbits()? * OF_CABLE;
        for end in used {
            let (slot, _) = end.device.pci.as_deref()?.split_once('.')?;
            if slots.insert(slot.to_owned()) {
                pcie += end.pcie(host)?.gbits() * of_pcie;
            }
        }
    }
    Some(f64::min(cables, pcie)).filter(|carried| *carried > 0.0)
}

/// The MTUs of two ends that have heard from each other.
fn mtus(cluster: &Cluster<'_>, wires: &Wires<'_>, rail: &HostRail) -> Option<Finding> {
    let [a, b] = [0, 1].map(|side| netdev(cluster, &rail.ends[side]));
    let (a, b) = (a?, b?);
    if a.mtu == b.mtu || rail.evidence != Evidence::Heard {
        return None;
    }
    let names = names(cluster, rail);
    let low = usize::from(b.mtu < a.mtu);
    let (host, name) = (rail.ends[low].host, &[a, b][low].name);
    let is_cable = rail.rdma && wires.direct_at(host, name).is_some();
    // An end that sends longer packets than the other one takes may be cut off.
    let most = a.mtu.max(b.mtu);
    let fix = match (is_cable, most) {
        (true, LARGE_PACKETS..) => {
            Fix::run(names[low], format!("sudo ip link set {name} mtu {most}"))
        }
        (true, _) => Fix::look(format!("net.mtu: its commands set both ends to {LARGE}")),
        (false, _) => Fix::look(
            "which MTU the switch, and all other hosts of that network, take; set that at all ends",
        ),
    };
    let problem = Problem::new(
        format!("{} has {}, {} has {}", a.name, a.mtu, b.name, b.mtu),
        "one MTU at both ends of a cable",
        "long packets of one end are dropped at the other, and operations stall",
        fix,
    );
    Some(Finding::fail("pair.mtu", &names, problem))
}

/// An end that has asked for the other one, and got no answer.
fn silent(cluster: &Cluster<'_>, rail: &HostRail) -> Option<Finding> {
    if rail.evidence != Evidence::Silent {
        return None;
    }
    let [a, b] = &rail.ends;
    let names = names(cluster, rail);
    let look = format!(
        "on {}: ping -c 3 -I {} {}; then where the cable of {} leads",
        names[0],
        a.netdev,
        b.gid.ip(),
        a.netdev
    );
    let problem = Problem::new(
        format!(
            "{} of {} does not answer {} of {}",
            b.gid.ip(),
            b.netdev,
            a.gid.ip(),
            a.netdev
        ),
        "an answer",
        "the addresses are in one subnet, but no cable joins these interfaces, or a firewall drops \
         what arrives",
        Fix::look(look),
    );
    Some(Finding::fail("pair.reach", &names, problem))
}

fn netdev<'a>(cluster: &Cluster<'a>, end: &RailEnd) -> Option<&'a Netdev> {
    cluster.hosts[end.host].netdev(&end.netdev)
}

/// The names of the hosts of a rail.
fn names<'a>(cluster: &Cluster<'a>, rail: &HostRail) -> [&'a str; 2] {
    rail.hosts().map(|host| cluster.hosts[host].name.as_str())
}
