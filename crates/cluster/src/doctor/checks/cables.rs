//! How cables are plugged in: what hardware addresses prove, and what a ring needs.

use std::collections::BTreeSet;

use spark_ccl_topology::cluster::{Cable, Shape};
use spark_ccl_topology::{Cluster, Neighbour, Netdev};

use super::wires::Wires;
use crate::finding::{Finding, Fix, Problem};

pub(super) fn checks(cluster: &Cluster<'_>, wires: &Wires<'_>) -> Vec<Finding> {
    let mut found = crossed(wires);
    if cluster.shape == Shape::Ring {
        found.extend(parity(cluster));
    }
    found
}

/// Finds cages that hear from a different cage than the one with the address. Twins answer for each
/// other, so only cages are compared.
fn crossed(wires: &Wires<'_>) -> Vec<Finding> {
    let all = wires.hosts.iter().enumerate();
    let all = all.flat_map(|(host, one)| one.network.neighbours.iter().map(move |it| (host, it)));
    let found: BTreeSet<_> = all
        .filter_map(|(host, one)| elsewhere(wires, host, one))
        .collect();
    found
        .into_iter()
        .map(|cages| plugged(wires, cages))
        .collect()
}

/// A cage, the cage that it hears from, and the cage that has the address, if the last two are
/// different cages of one host. At a switch, a host may answer for one cage on another; so the cage
/// that has the address must have no cable, or one that leads elsewhere.
fn elsewhere(wires: &Wires<'_>, host: usize, neighbour: &Neighbour) -> Option<[usize; 3]> {
    let [own, heard] = wires.heard(host, neighbour)?;
    let has = |netdev: &Netdev| netdev.addresses.iter().any(|one| one.ip == neighbour.ip);
    let expected = wires.find(host, has)?;
    let [there, other] = [heard, expected].map(|place| &wires.places[place]);
    let is_free = !other.cage.is_cabled() || wires.direct(expected).is_some_and(|end| end != own);
    let is_crossed = heard != expected && there.host == other.host && is_free;
    (is_crossed && wires.direct(own) == Some(heard)).then_some([own, heard, expected])
}

fn plugged(wires: &Wires<'_>, cages: [usize; 3]) -> Finding {
    let [own, heard, expected] = cages.map(|cage| &wires.places[cage]);
    let [host, peer] = [own, heard].map(|place| wires.hosts[place.host].name.as_str());
    let [own, heard, expected] = [own, heard, expected].map(|place| &place.cage.name);
    let problem = Problem::new(
        format!(
            "the cable of {own} leads to {heard} of {peer}, and its addresses are those of \
             {expected}"
        ),
        format!("{own} joined to {expected}"),
        "as far as the kernel remembers, the addresses belong to another cable, so nothing arrives",
        Fix::look(format!(
            "where the cable leads; plug it into {expected} on {peer}, or give the interfaces of \
             {heard} the addresses of {expected}"
        )),
    );
    Finding::fail("cable.crossed", &[host, peer], problem)
}

/// Whether every cable of a ring joins different cages.
fn parity(cluster: &Cluster<'_>) -> Option<Finding> {
    let is_equal = |cable: &&Cable| {
        let [a, b] = &cable.ends;
        a.cage.is_some() && a.name == b.name
    };
    let equal: Vec<_> = cluster.cables.iter().filter(is_equal).collect();
    if equal.is_empty() {
        return None;
    }
    let name = |host: usize| cluster.hosts[host].name.as_str();
    let list: Vec<_> = equal
        .iter()
        .map(|cable| {
            let [a, b] = cable
                .ends
                .each_ref()
                .map(|end| format!("{} {}", name(end.host), end.name));
            format!("{a} to {b}")
        })
        .collect();
    // If both cables of one host are wrong, they are swapped at that host.
    let mut hosts = 0..cluster.hosts.len();
    let common =
        hosts.find(|host| equal.len() == 2 && equal.iter().all(|it| it.seen_from(*host).is_some()));
    let fix = match common {
        Some(host) => format!(
            "exchange the two cables at {0}, then give the interfaces of {0} their addresses anew",
            name(host)
        ),
        None => {
            "how the cables go: the first cage of each host leads to the second one of the next"
                .to_owned()
        }
    };
    let ends = equal
        .iter()
        .flat_map(|cable| cable.ends.each_ref().map(|end| end.host));
    let hosts: BTreeSet<_> = ends.collect();
    let names: Vec<_> = common.map_or_else(
        || hosts.into_iter().map(name).collect(),
        |host| vec![name(host)],
    );
    let problem = Problem::new(
        format!("cables between equal cages: {}", list.join(", ")),
        "p0 to p1 all around the ring",
        "NCCL pairs devices by their order, and its connections may end in error 110 (modify_qp)",
        Fix::look(fix),
    );
    Some(Finding::fail("cable.parity", &names, problem))
}
