//! How cables are plugged in: what hardware addresses prove, and what a ring needs.

use spark_ccl_topology::cluster::{Cable, Shape};
use spark_ccl_topology::{Cluster, Host, Neighbour, Netdev};

use crate::doctor::finding::{Finding, Problem};

pub(super) fn checks(cluster: &Cluster<'_>) -> Vec<Finding> {
    let mut found = crossed(cluster);
    if cluster.shape == Shape::Ring {
        found.extend(parity(cluster));
    }
    found
}

/// Interfaces that hear from another interface than the one that their addresses say.
fn crossed(cluster: &Cluster<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (index, host) in cluster.hosts.iter().enumerate() {
        for neighbour in &host.network.neighbours {
            let Some((other, heard)) = owner(cluster, index, neighbour) else {
                continue;
            };
            let rail = cluster.between(index, other).find(|rail| {
                let mut ends = rail.ends.iter();
                ends.any(|end| end.host == index && end.netdev == neighbour.netdev)
            });
            let expected = rail.map(|rail| {
                let end = rail.ends.iter().find(|end| end.host == other);
                end.map(|end| end.netdev.clone()).unwrap_or_default()
            });
            if let Some(expected) = expected.filter(|expected| *expected != heard.name) {
                let peer = &cluster.hosts[other];
                found.push(problem(
                    host,
                    peer,
                    &neighbour.netdev,
                    &heard.name,
                    &expected,
                ));
            }
        }
    }
    found.dedup();
    found
}

/// The interface of another host that a hardware address belongs to.
fn owner<'a>(
    cluster: &Cluster<'a>,
    own: usize,
    neighbour: &Neighbour,
) -> Option<(usize, &'a Netdev)> {
    let mac = neighbour.mac.as_ref()?;
    let others = cluster.hosts.iter().enumerate();
    let mut netdevs = others
        .filter(|(other, _)| *other != own)
        .flat_map(|(other, host)| host.network.netdevs.iter().map(move |one| (other, one)));
    netdevs.find(|(_, netdev)| netdev.mac.as_ref() == Some(mac))
}

fn problem(host: &Host, peer: &Host, netdev: &str, heard: &str, expected: &str) -> Finding {
    Finding::fail(
        "cable.crossed",
        &[&host.name, &peer.name],
        Problem {
            seen: format!(
                "{netdev} is joined to {heard}, and has an address of the subnet of {expected}"
            ),
            wanted: format!("{netdev} joined to {expected}"),
            why: "the addresses say that another cable is there, so nothing arrives".to_owned(),
            fix: format!(
                "plug the cable of {netdev} into the cage of {expected}, or exchange the addresses of {heard} and {expected} on {}",
                peer.name
            ),
        },
    )
}

/// Whether every cable of a ring joins different cages.
fn parity(cluster: &Cluster<'_>) -> Vec<Finding> {
    cluster
        .cables
        .iter()
        .filter_map(|cable| equal_ends(cluster, cable))
        .collect()
}

fn equal_ends(cluster: &Cluster<'_>, cable: &Cable) -> Option<Finding> {
    let [a, b] = &cable.ends;
    if a.cage.is_none() || a.name != b.name {
        return None;
    }
    let names = [a.host, b.host].map(|host| cluster.hosts[host].name.as_str());
    let other = if a.name == "p0" { "p1" } else { "p0" };
    Some(Finding::fail(
        "cable.parity",
        &names,
        Problem {
            seen: format!("a cable from {} to {}", a.name, b.name),
            wanted: "p0 to p1 all around the ring".to_owned(),
            why: "NCCL pairs devices by their order, and its connections end in error 110 (modify_qp)".to_owned(),
            fix: format!("on {}: plug this cable into {other}, and the one that is there into {}; then give the interfaces their addresses anew", names[1], b.name),
        },
    ))
}
