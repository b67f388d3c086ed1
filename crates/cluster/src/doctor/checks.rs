//! The checks, a file for each area. Knows models of hosts; reads no machine and prints nothing.

mod addresses;
mod cables;
mod cards;
mod cluster;
mod gpus;
mod kind;
mod limits;
mod links;
mod machine;
mod overlap;
mod pinned;
mod proposals;
mod rate;
mod routes;
mod software;
mod subnets;
#[cfg(test)]
mod tests;
mod unplugged;
mod wires;

pub(crate) use links::expected;
pub(super) use pinned::Pinned;
use proposals::proposals;
use spark_ccl_topology::Cluster;
use wires::Wires;

use crate::finding::Finding;

/// The subject of a check.
pub(super) struct Subject<'a> {
    pub(super) cluster: &'a Cluster<'a>,
    /// For each host how far its clock is ahead, and how exact that is, in seconds.
    pub(super) clocks: &'a [Option<(f64, f64)>],
    /// Settings that jobs on all hosts will have.
    pub(super) pinned: &'a [Pinned],
}

/// All findings: those about each host, about each pair, and about all.
pub(super) fn all(subject: &Subject<'_>) -> Vec<Finding> {
    let cluster = subject.cluster;
    let wires = Wires::of(cluster);
    let proposals = proposals(&wires);
    let mut found = Vec::new();
    for (index, host) in cluster.hosts.iter().enumerate() {
        found.extend(machine::checks(host));
        found.extend(software::checks(host));
        found.extend(gpus::checks(host));
        found.extend(limits::checks(host));
        found.extend(cards::checks(host, cluster.hosts.len() == 1));
        found.extend(addresses::checks(&wires, &proposals, index));
        found.extend(subnets::checks(&wires, index));
        found.extend(overlap::checks(&wires, index));
        found.extend(unplugged::checks(host));
        found.extend(pinned::checks(host, subject.pinned));
    }
    found.extend(addresses::of_all(cluster, &wires, &proposals));
    found.extend(links::checks(cluster, &wires));
    found.extend(cables::checks(cluster, &wires));
    found.extend(cluster::checks(subject));
    found
}
