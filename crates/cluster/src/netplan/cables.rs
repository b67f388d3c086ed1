//! Checks that cables join what the plan says.
//!
//! An answer from an address is not enough: Linux answers for each of its addresses on every
//! interface. The hardware address of the answer shows it.

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use super::plan::{Interface, Node};

/// A node's view of its cables.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct View {
    /// The hardware addresses of its interfaces.
    own: BTreeMap<String, String>,
    /// The hardware address that answers on an interface for an address.
    neighbours: Vec<(String, Ipv4Addr, String)>,
}

impl View {
    /// The view of this node, after it has talked to its neighbours.
    pub(super) fn new(interfaces: &[Interface]) -> Self {
        let mut own = BTreeMap::new();
        for Interface { name, .. } in interfaces {
            let read = fs::read_to_string(format!("/sys/class/net/{name}/address"));
            own.extend(read.map(|address| (name.clone(), address.trim().to_owned())));
        }
        Self {
            own,
            neighbours: neighbours(),
        }
    }
}

/// The hardware address that answers on an interface for an address.
pub(super) fn hardware(interface: &str, address: Ipv4Addr) -> Option<String> {
    let mut all = neighbours().into_iter();
    all.find(|(on, of, _)| on == interface && *of == address)
        .map(|(_, _, hardware)| hardware)
}

/// The neighbours that the kernel knows: interface, address, hardware address.
fn neighbours() -> Vec<(String, Ipv4Addr, String)> {
    let table = fs::read_to_string("/proc/net/arp").unwrap_or_default();
    table.lines().filter_map(neighbour).collect()
}

/// A line of the kernel's table: address, type, flags, hardware address, mask, interface. A
/// neighbour that does not answer has no flags.
fn neighbour(line: &str) -> Option<(String, Ipv4Addr, String)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [address, _, flags, hardware, _, interface] = words[..] else {
        return None;
    };
    if flags == "0x0" {
        return None;
    }
    Some((
        interface.to_owned(),
        address.parse().ok()?,
        hardware.to_owned(),
    ))
}

/// The cables that end elsewhere than the plan says, or nobody knows where, each in words; `views`
/// are those of the nodes.
pub(super) fn crossed(nodes: &[Node], views: &[View]) -> Vec<String> {
    let owner = |hardware: &str| {
        nodes.iter().zip(views).find_map(|(node, view)| {
            let (name, _) = view.own.iter().find(|(_, own)| *own == hardware)?;
            Some((&node.name, name))
        })
    };
    let mut problems = Vec::new();
    for (node, view) in nodes.iter().zip(views) {
        let planned = node.interfaces.iter().flat_map(|interface| {
            let peers = interface.peers.iter();
            peers.map(move |peer| (&interface.name, peer))
        });
        for (name, peer) in planned {
            let mut all = view.neighbours.iter();
            let seen = all.find(|(on, address, _)| on == name && *address == peer.address);
            let Some((_, _, hardware)) = seen else {
                problems.push(format!(
                    "{}: not seen what answers on {name} for {} ({} of {})",
                    node.name, peer.address, peer.interface, peer.node
                ));
                continue;
            };
            let Some((far_node, far)) = owner(hardware) else {
                problems.push(format!(
                    "{}: the cable of {name} ends at {hardware}, which is no planned interface of \
                     these nodes, not at {} of {}",
                    node.name, peer.interface, peer.node
                ));
                continue;
            };
            if (far_node, far) != (&peer.node, &peer.interface) {
                problems.push(format!(
                    "{}: the cable of {name} ends at {far} of {far_node}, not at {} of {}: put it \
                     there, or plan with other --interfaces",
                    node.name, peer.interface, peer.node
                ));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netplan::plan::Peer;

    #[test]
    fn the_kernels_table_is_read() {
        let head = "IP address       HW type     Flags       HW address            Mask     Device";
        assert_eq!(neighbour(head), None);
        let line = "192.168.100.2    0x1         0x2         02:00:00:00:00:02     *        en0";
        let expected = (
            "en0".to_owned(),
            Ipv4Addr::new(192, 168, 100, 2),
            "02:00:00:00:00:02".to_owned(),
        );
        assert_eq!(neighbour(line), Some(expected));
        assert_eq!(neighbour(&line.replace("0x2", "0x0")), None);
    }

    #[test]
    fn a_cable_whose_end_nobody_knows_is_a_problem() {
        let node = |name: &str, last: u8, other: &str| Node {
            name: name.to_owned(),
            interfaces: vec![Interface {
                name: "en0".to_owned(),
                address: Ipv4Addr::new(10, 0, 0, last),
                prefix: 24,
                mtu: 9000,
                peers: vec![Peer {
                    node: other.to_owned(),
                    interface: "en0".to_owned(),
                    address: Ipv4Addr::new(10, 0, 0, 3 - last),
                }],
            }],
        };
        let view = |own: &str, seen: Option<(u8, &str)>| View {
            own: BTreeMap::from([("en0".to_owned(), own.to_owned())]),
            neighbours: seen
                .map(|(last, hardware)| {
                    let address = Ipv4Addr::new(10, 0, 0, last);
                    ("en0".to_owned(), address, hardware.to_owned())
                })
                .into_iter()
                .collect(),
        };
        let nodes = [node("a", 1, "b"), node("b", 2, "a")];
        let fine = view("0a", Some((2, "0b")));
        let crossed = |seen| crossed(&nodes, &[fine.clone(), view("0b", seen)]);
        assert!(crossed(Some((1, "0a"))).is_empty());
        for (seen, words) in [(None, "b: not seen"), (Some((1, "0c")), "ends at 0c")] {
            let problems = crossed(seen);
            assert!(
                problems.len() == 1 && problems[0].contains(words),
                "{problems:?}"
            );
        }
    }
}
