//! Whether cables join what the plan says.
//!
//! That addresses answer does not show it: Linux answers for each of its addresses on every interface. Which hardware
//! address answers does.

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use super::plan::{Interface, Node};

/// What a node sees of its cables.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct View {
    /// The hardware addresses of its interfaces.
    own: BTreeMap<String, String>,
    /// Which hardware address answers on an interface for an address.
    neighbours: Vec<(String, Ipv4Addr, String)>,
}

impl View {
    /// What this node sees, after it has talked to its neighbours.
    pub(super) fn new(interfaces: &[Interface]) -> Self {
        let mut own = BTreeMap::new();
        for Interface { name, .. } in interfaces {
            let read = fs::read_to_string(format!("/sys/class/net/{name}/address"));
            own.extend(read.map(|address| (name.clone(), address.trim().to_owned())));
        }
        let table = fs::read_to_string("/proc/net/arp").unwrap_or_default();
        let neighbours = table.lines().filter_map(neighbour).collect();
        Self { own, neighbours }
    }
}

/// A line of the kernel's table: address, type, flags, hardware address, mask, interface.
fn neighbour(line: &str) -> Option<(String, Ipv4Addr, String)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [address, _, _, hardware, _, interface] = words[..] else {
        return None;
    };
    Some((
        interface.to_owned(),
        address.parse().ok()?,
        hardware.to_owned(),
    ))
}

/// The cables that end elsewhere than the plan says, each in words; `views` are those of the nodes.
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
            let Some((far_node, far)) = seen.and_then(|(_, _, hardware)| owner(hardware)) else {
                continue;
            };
            if (far_node, far) != (&peer.node, &peer.interface) {
                problems.push(format!(
                    "{}: the cable of {name} ends at {far} of {far_node}, not at {} of {}: put it there, or plan with \
                     other --interfaces",
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
    }
}
