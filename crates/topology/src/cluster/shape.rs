//! The shape that cables give a cluster: pair, ring, chain, switch or mesh.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::cables::Cable;

/// The shape of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One host.
    Single,
    /// Two hosts, joined directly or by a switch, which looks the same.
    Pair,
    /// A ring: each host has cables to two others. In a ring of three, all hosts are neighbours.
    Ring,
    /// A ring with one cable missing.
    Chain,
    /// A port reaches several hosts.
    Switch,
    /// All hosts reach each other, but in no shape with a name.
    Mixed,
    /// Some hosts reach no other, or there are separate groups.
    Apart,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Single => "one host",
            Self::Pair => "a pair",
            Self::Ring => "a ring without a switch",
            Self::Chain => "a chain: a ring of which a cable is missing",
            Self::Switch => "a switch",
            Self::Mixed => "hosts that are joined irregularly",
            Self::Apart => "hosts of which some do not reach each other",
        })
    }
}

pub(super) fn shape(hosts: usize, cables: &[Cable]) -> Shape {
    if hosts <= 1 {
        return Shape::Single;
    }
    let neighbours = neighbours(hosts, cables);
    if !is_connected(&neighbours) {
        return Shape::Apart;
    }
    if hosts == 2 {
        return Shape::Pair;
    }
    if reaches_several(cables) {
        return Shape::Switch;
    }
    let degrees = |wanted: usize| neighbours.iter().filter(|all| all.len() == wanted).count();
    match (degrees(1), degrees(2)) {
        (0, two) if two == hosts => Shape::Ring,
        (2, two) if two + 2 == hosts => Shape::Chain,
        _ => Shape::Mixed,
    }
}

fn neighbours(hosts: usize, cables: &[Cable]) -> Vec<BTreeSet<usize>> {
    let mut neighbours = vec![BTreeSet::new(); hosts];
    for cable in cables {
        let [a, b] = [&cable.ends[0], &cable.ends[1]].map(|end| end.host);
        neighbours[a].insert(b);
        neighbours[b].insert(a);
    }
    neighbours
}

fn is_connected(neighbours: &[BTreeSet<usize>]) -> bool {
    let mut reached = BTreeSet::from([0]);
    let mut open = vec![0];
    while let Some(host) = open.pop() {
        let next = neighbours[host].iter().copied();
        open.extend(next.filter(|&next| reached.insert(next)));
    }
    reached.len() == neighbours.len()
}

/// Whether a cage has cables to several hosts, which needs a switch.
fn reaches_several(cables: &[Cable]) -> bool {
    let mut peers: BTreeMap<_, BTreeSet<usize>> = BTreeMap::new();
    for [a, b] in cables.iter().map(|cable| &cable.ends) {
        peers.entry(a).or_default().insert(b.host);
        peers.entry(b).or_default().insert(a.host);
    }
    peers.values().any(|hosts| hosts.len() > 1)
}
