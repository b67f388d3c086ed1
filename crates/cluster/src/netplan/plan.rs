//! Plans addresses: a pure function of the nodes and how they are cabled.
//!
//! One cage of a Spark shows up as two interfaces, *twins*, of which each carries half of the
//! cable's bandwidth. Each has its own subnet, so that the kernel sends traffic for that subnet
//! through it.

use std::collections::BTreeSet;
use std::fmt;
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

/// The most nodes of a plan.
const MOST_NODES: usize = 10;
/// The length of a subnet's prefix.
pub(super) const PREFIX: u8 = 24;
/// The longest name of an interface that Linux takes.
const LONGEST_NAME: usize = 15;

/// How the nodes are cabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Topology {
    /// Two nodes, cage to same cage
    Direct,
    /// Three nodes or more, each one's first cage to the second cage of the next
    Ring,
    /// All nodes to one switch
    Switch,
}

/// The nodes, cables and addresses of a plan.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub(super) topology: Topology,
    pub(super) nodes: Vec<String>,
    /// The interfaces of each cage, alike on all nodes.
    pub(super) cages: Vec<Vec<String>>,
    /// Between two nodes, or from each to the switch.
    pub(super) cables: usize,
    /// The first subnet; the others follow in its third number.
    pub(super) base: Ipv4Addr,
    pub(super) mtu: u16,
}

/// The interfaces of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) interfaces: Vec<Interface>,
}

/// An interface with its address, and what it reaches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) address: Ipv4Addr,
    pub(super) prefix: u8,
    pub(super) mtu: u16,
    pub(super) peers: Vec<Peer>,
}

/// An interface at the other end of a cable, or of the switch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Peer {
    pub(super) node: String,
    pub(super) interface: String,
    pub(super) address: Ipv4Addr,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {})", self.node, self.interface, self.address)
    }
}

/// Plans the addresses of all nodes, in their order.
pub(super) fn plan(layout: &Layout) -> Result<Vec<Node>, String> {
    check(layout)?;
    let mut nodes: Vec<Node> = layout.nodes.iter().map(|name| Node::new(name)).collect();
    let mut subnet = 0;
    for segment in segments(layout) {
        let twins = layout.cages[segment[0].1].len();
        for twin in 0..twins {
            let ends = segment.iter().map(|&(node, cage)| {
                let interface = layout.cages[cage][twin].clone();
                (node, interface, address(layout.base, subnet, node))
            });
            join(layout, &mut nodes, &ends.collect::<Vec<_>>());
            subnet += 1;
        }
    }
    Ok(nodes)
}

/// Gives the ends of a subnet their addresses, and each the others as peers.
fn join(layout: &Layout, nodes: &mut [Node], ends: &[(usize, String, Ipv4Addr)]) {
    for (node, name, address) in ends {
        let others = ends.iter().filter(|(other, _, _)| other != node);
        let peers = others.map(|(other, interface, address)| Peer {
            node: layout.nodes[*other].clone(),
            interface: interface.clone(),
            address: *address,
        });
        nodes[*node].interfaces.push(Interface {
            name: name.clone(),
            address: *address,
            prefix: PREFIX,
            mtu: layout.mtu,
            peers: peers.collect(),
        });
    }
}

/// Lists the ends that are cabled together: nodes, each with a cage.
fn segments(layout: &Layout) -> Vec<Vec<(usize, usize)>> {
    let count = layout.nodes.len();
    match layout.topology {
        Topology::Direct | Topology::Switch => {
            let all = |cage| (0..count).map(|node| (node, cage)).collect();
            (0..layout.cables).map(all).collect()
        }
        Topology::Ring => {
            let cable = |node| vec![(node, 0), ((node + 1) % count, 1)];
            (0..count).map(cable).collect()
        }
    }
}

/// The address of a node in a subnet. Its last number is that of the node, from 1.
fn address(base: Ipv4Addr, subnet: u8, node: usize) -> Ipv4Addr {
    let [a, b, c, _] = base.octets();
    Ipv4Addr::new(a, b, c + subnet, node as u8 + 1)
}

fn check(layout: &Layout) -> Result<(), String> {
    let count = layout.nodes.len();
    let (least, most, needed) = match layout.topology {
        Topology::Direct => (2, 2, layout.cables),
        Topology::Ring => (3, MOST_NODES, 2),
        Topology::Switch => (2, MOST_NODES, layout.cables),
    };
    if !(least..=most).contains(&count) {
        return Err(format!(
            "{count} nodes: a {:?} topology has {least} to {most}",
            layout.topology
        ));
    }
    if let Some(twice) = twice(&layout.nodes) {
        return Err(format!("node {twice} comes twice"));
    }
    if layout.cages.len() < needed {
        return Err(format!(
            "{needed} cages of each node are cabled, but --interfaces names {}",
            layout.cages.len()
        ));
    }
    let names: Vec<String> = layout.cages.iter().flatten().cloned().collect();
    if let Some(bad) = names.iter().find(|name| !is_interface(name)) {
        return Err(format!("{bad:?} is no name of an interface"));
    }
    if let Some(twice) = twice(&names) {
        return Err(format!("interface {twice} comes twice"));
    }
    if layout
        .cages
        .iter()
        .any(|cage| cage.len() != layout.cages[0].len())
    {
        return Err("all cages must have as many interfaces".to_owned());
    }
    check_subnets(layout)
}

fn check_subnets(layout: &Layout) -> Result<(), String> {
    let [_, _, third, last] = layout.base.octets();
    if last != 0 || !layout.base.is_private() {
        let base = layout.base;
        return Err(format!(
            "{base}: expected a private network that ends in .0, as 192.168.100.0"
        ));
    }
    let count = segments(layout).len() * layout.cages[0].len();
    if usize::from(third) + count > 256 {
        return Err(format!(
            "{count} subnets from {} on: more than there are",
            layout.base
        ));
    }
    Ok(())
}

fn twice(names: &[String]) -> Option<&String> {
    let mut seen = BTreeSet::new();
    names.iter().find(|name| !seen.insert(*name))
}

fn is_interface(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=LONGEST_NAME).contains(&name.len())
        && name.chars().all(allowed)
        && !name.starts_with(['-', '.'])
}

impl Node {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            interfaces: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    pub(in crate::netplan) fn layout(topology: Topology, nodes: usize, cables: usize) -> Layout {
        let cage = |number: usize| {
            vec![
                format!("enp1s0f{number}np{number}"),
                format!("enP2p1s0f{number}np{number}"),
            ]
        };
        Layout {
            topology,
            nodes: (1..=nodes).map(|node| format!("spark-{node}")).collect(),
            cages: vec![cage(0), cage(1)],
            cables,
            base: Ipv4Addr::new(192, 168, 100, 0),
            mtu: 9000,
        }
    }

    /// All interfaces of a plan by their subnets.
    fn subnets(nodes: &[Node]) -> BTreeMap<[u8; 3], Vec<(&str, &Interface)>> {
        let mut subnets: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for node in nodes {
            for interface in &node.interfaces {
                let [a, b, c, _] = interface.address.octets();
                subnets
                    .entry([a, b, c])
                    .or_default()
                    .push((node.name.as_str(), interface));
            }
        }
        subnets
    }

    #[test]
    fn a_cable_between_two_has_two_subnets() {
        let nodes = plan(&layout(Topology::Direct, 2, 1)).unwrap();
        let seen: Vec<_> = nodes[1]
            .interfaces
            .iter()
            .map(|one| (one.name.as_str(), one.address.to_string()))
            .collect();
        let expected = [
            ("enp1s0f0np0", "192.168.100.2"),
            ("enP2p1s0f0np0", "192.168.101.2"),
        ];
        assert_eq!(
            seen,
            expected.map(|(name, address)| (name, address.to_owned()))
        );
        assert_eq!(
            subnets(&plan(&layout(Topology::Direct, 2, 2)).unwrap()).len(),
            4
        );
    }

    #[test]
    fn a_ring_of_three_has_six_subnets_and_crosses_cages() {
        let nodes = plan(&layout(Topology::Ring, 3, 1)).unwrap();
        let subnets = subnets(&nodes);
        assert_eq!(subnets.len(), 6);
        for ends in subnets.values() {
            let [(one, a), (other, b)] = ends[..] else {
                panic!("{ends:?}")
            };
            assert_ne!(one, other);
            // The first cage of one, the second of the other, and the same function of both.
            assert_ne!(a.name.ends_with("np0"), b.name.ends_with("np0"));
            assert_eq!(a.name.starts_with("enP2"), b.name.starts_with("enP2"));
        }
    }

    /// Checks every plan: one address and one subnet for each interface, and peers that see each
    /// other.
    #[test]
    fn plans_of_all_sizes_are_sound() {
        let rings = (3..=10).map(|nodes| (Topology::Ring, nodes, 1));
        let switches =
            (2..=10).flat_map(|nodes| [1, 2].map(|cables| (Topology::Switch, nodes, cables)));
        for (topology, count, cables) in rings.chain(switches) {
            let nodes = plan(&layout(topology, count, cables)).unwrap();
            let all: Vec<_> = nodes.iter().flat_map(|node| &node.interfaces).collect();
            let addresses: BTreeSet<_> = all.iter().map(|one| one.address).collect();
            assert_eq!(addresses.len(), all.len());
            for (_, ends) in subnets(&nodes) {
                for (name, end) in &ends {
                    let mut peers: Vec<_> = end
                        .peers
                        .iter()
                        .map(|peer| (peer.node.as_str(), peer.address))
                        .collect();
                    peers.push((name, end.address));
                    peers.sort_by_key(|(_, address)| *address);
                    let expected: Vec<_> = ends
                        .iter()
                        .map(|(name, end)| (*name, end.address))
                        .collect();
                    let mut expected = expected;
                    expected.sort_by_key(|(_, address)| *address);
                    assert_eq!(peers, expected);
                }
            }
            let each = if topology == Topology::Ring {
                4
            } else {
                2 * cables
            };
            for node in &nodes {
                let names: BTreeSet<_> = node.interfaces.iter().map(|one| &one.name).collect();
                assert_eq!((names.len(), node.interfaces.len()), (each, each));
            }
        }
    }

    #[test]
    fn what_cannot_be_planned_is_refused() {
        let refused = |change: fn(&mut Layout), topology, nodes, words: &str| {
            let mut layout = layout(topology, nodes, 1);
            change(&mut layout);
            let why = plan(&layout).unwrap_err();
            assert!(why.contains(words), "{why}");
        };
        refused(|_| (), Topology::Direct, 3, "3 nodes");
        refused(|_| (), Topology::Ring, 2, "3 to 10");
        refused(|_| (), Topology::Switch, 11, "11 nodes");
        refused(
            |one| one.nodes[1] = "spark-1".to_owned(),
            Topology::Switch,
            2,
            "twice",
        );
        refused(|one| one.cages.truncate(1), Topology::Ring, 3, "2 cages");
        refused(
            |one| one.cages[0][0] = "a b".to_owned(),
            Topology::Direct,
            2,
            "\"a b\"",
        );
        refused(
            |one| one.cages[1][0] = "enp1s0f0np0".to_owned(),
            Topology::Ring,
            3,
            "twice",
        );
        refused(
            |one| one.base = Ipv4Addr::new(8, 8, 8, 0),
            Topology::Direct,
            2,
            "private",
        );
        refused(
            |one| one.base = Ipv4Addr::new(192, 168, 255, 0),
            Topology::Direct,
            2,
            "more than",
        );
    }
}
