//! RDMA devices, read from sysfs: libibverbs is not needed.

use std::collections::BTreeMap;
use std::net::IpAddr;

use spark_ccl_verbs::Sysfs;

use super::Tree;
use crate::model::{PortState, RdmaDevice, RdmaPort};
use crate::rdma::Gid;

const FOLDER: &str = "sys/class/infiniband";

/// The counters to read: of errors, and of all bytes.
const COUNTERS: &[(&str, &str)] = &[
    ("counters", "local_link_integrity_errors"),
    ("counters", "port_rcv_data"),
    ("counters", "port_rcv_errors"),
    ("counters", "port_xmit_data"),
    ("counters", "port_xmit_discards"),
    ("counters", "symbol_error"),
    ("hw_counters", "local_ack_timeout_err"),
    ("hw_counters", "out_of_buffer"),
    ("hw_counters", "out_of_sequence"),
    ("hw_counters", "packet_seq_err"),
];

pub(super) fn devices(tree: &Tree, prefixes: &BTreeMap<IpAddr, u8>) -> Vec<RdmaDevice> {
    let sysfs = Sysfs::at(tree.root());
    let names = tree.names(FOLDER).into_iter();
    let device = |name: String| {
        let at = |file: &str| format!("{FOLDER}/{name}/{file}");
        let ports = tree.names(&at("ports")).into_iter();
        let ports = ports.filter_map(|number| number.parse().ok());
        RdmaDevice {
            pci: sysfs.pci_address(&name),
            firmware: tree.text(&at("fw_ver")),
            card: tree.text(&at("sys_image_guid")).filter(|guid| is_set(guid)),
            ports: ports
                .map(|number| port(tree, &sysfs, &name, number, prefixes))
                .collect(),
            name,
        }
    };
    names.map(device).collect()
}

fn port(
    tree: &Tree,
    sysfs: &Sysfs,
    device: &str,
    number: u8,
    prefixes: &BTreeMap<IpAddr, u8>,
) -> RdmaPort {
    let at = |file: &str| format!("{FOLDER}/{device}/ports/{number}/{file}");
    let entries = sysfs.gids(device, number);
    let own = entries.iter().find_map(|entry| entry.netdev.clone());
    let mut gids: Vec<_> = entries.iter().filter_map(Gid::of_entry).collect();
    for gid in &mut gids {
        gid.prefix = prefixes.get(&gid.ip()).copied();
    }
    let counter = |&(folder, name): &(&str, &str)| {
        let value = tree.number(&at(&format!("{folder}/{name}")))?;
        Some((name.to_owned(), value))
    };
    RdmaPort {
        number,
        state: state(tree.text(&at("state")).as_deref()),
        rate: tree.text(&at("rate")).as_deref().and_then(rate),
        ethernet: tree.text(&at("link_layer")).as_deref() == Some("Ethernet"),
        netdev: own.or_else(|| sysfs.netdevs(device).into_iter().next()),
        gids,
        counters: COUNTERS.iter().filter_map(counter).collect(),
    }
}

/// A state such as `4: ACTIVE`.
fn state(text: Option<&str>) -> PortState {
    match text.and_then(|text| text.split(':').next()) {
        Some("4") => PortState::Active,
        Some("1") => PortState::Down,
        _ => PortState::Other,
    }
}

/// A rate such as `200 Gb/sec (4X HDR)`, in Mbit/s.
fn rate(text: &str) -> Option<u32> {
    let number: f64 = text.split_whitespace().next()?.parse().ok()?;
    (number > 0.0 && number < 1e6).then_some((number * 1000.0) as u32)
}

/// Whether a number such as `fc4c:ea03:00f9:4230` is not zero.
fn is_set(guid: &str) -> bool {
    guid.bytes().any(|byte| byte != b'0' && byte != b':')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_sysfs() {
        assert_eq!(rate("200 Gb/sec (4X HDR)"), Some(200_000));
        assert_eq!(rate("2.5 Gb/sec (1X SDR)"), Some(2500));
        assert_eq!(rate("fast"), None);
        assert_eq!(rate("inf"), None);
        assert_eq!(state(Some("4: ACTIVE")), PortState::Active);
        assert_eq!(state(Some("1: DOWN")), PortState::Down);
        assert_eq!(state(None), PortState::Other);
        assert!(is_set("fc4c:ea03") && !is_set("0000:0000"));
    }
}
