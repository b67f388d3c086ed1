//! A node's plan as a file of netplan.

use std::fmt::Write;

use super::plan::Node;

/// The file's text. Names of interfaces and addresses need no quotes in YAML.
pub(super) fn file(node: &Node) -> String {
    let mut text = format!("# {}: made by spark-perf netplan\n", node.name);
    text.push_str("network:\n  version: 2\n  ethernets:\n");
    for interface in &node.interfaces {
        let peers = interface.peers.iter();
        let peers: Vec<_> = peers
            .map(|peer| format!("{} {}", peer.node, peer.interface))
            .collect();
        let _ = write!(
            text,
            "    {}: # to {}\n      addresses: [{}/{}]\n      mtu: {}\n      dhcp4: false\n      \
             dhcp6: false\n      accept-ra: false\n      optional: true\n",
            interface.name,
            peers.join(", "),
            interface.address,
            interface.prefix,
            interface.mtu
        );
    }
    text
}
