//! Interfaces of a host that share a subnet: the kernel answers for the address of each on all.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use spark_ccl_topology::cluster::leading;
use spark_ccl_topology::netif::same_subnet;
use spark_ccl_topology::{Host, NeighbourState, Netdev};

use super::proposals::ipv4;
use super::wires::{Place, Wires, is_ethernet};
use crate::finding::{Finding, Fix, Problem};

/// The value of `rp_filter` that drops packets from another interface than routes lead over.
const STRICT: u8 = 1;

/// Compares the functions of each cage; on a host without RDMA, the interfaces that carry TCP.
pub(super) fn checks(wires: &Wires<'_>, index: usize) -> Vec<Finding> {
    let host = &wires.hosts[index];
    let places = wires.places.iter().filter(|place| place.host == index);
    if host.rdma.is_empty() {
        // Cables that are apart need nothing: sockets are bound to the interfaces.
        let is_harmless = |a: &Netdev, b: &Netdev, ip: Ipv4Addr| {
            ip.is_link_local() && !is_strict(a) && !is_strict(b) && !on_one_network(host, a, b)
        };
        return Vec::from_iter(twins(host, &leading(host), is_harmless));
    }
    // NVIDIA's recommended set-up has all ports in the link-local subnet, and the library probes
    // there.
    let of_cage = |place| twins(host, &active(place), |_, _, ip| ip.is_link_local());
    places.filter_map(of_cage).collect()
}

fn active<'a>(place: &Place<'a>) -> Vec<&'a Netdev> {
    let ends = place.cage.ends.iter();
    let active = ends.filter(|end| end.is_active() && is_ethernet(end));
    active.filter_map(|end| end.netdev).collect()
}

/// Whether the same host has been heard at both.
fn on_one_network(host: &Host, a: &Netdev, b: &Netdev) -> bool {
    let known = host.network.neighbours.iter();
    let known = known.filter(|one| one.state == NeighbourState::Known && one.mac.is_some());
    let macs_at = |name: &str| -> BTreeSet<_> {
        let at = known.clone().filter(|one| one.netdev == name);
        at.map(|one| &one.mac).collect()
    };
    !macs_at(&a.name).is_disjoint(&macs_at(&b.name))
}

/// The first two of these interfaces that share a subnet and are not set up for that.
fn twins(
    host: &Host,
    netdevs: &[&Netdev],
    is_harmless: impl Fn(&Netdev, &Netdev, Ipv4Addr) -> bool,
) -> Option<Finding> {
    let addresses = netdevs
        .iter()
        .flat_map(|netdev| ipv4(netdev).map(|one| (*netdev, one)));
    let addresses: Vec<_> = addresses.collect();
    let pairs = addresses.iter().enumerate();
    let mut pairs =
        pairs.flat_map(|(place, one)| addresses[..place].iter().map(move |other| (other, one)));
    let ((first, (a, _)), (second, (b, _))) =
        pairs.find(|((first, (a, prefix)), (second, (b, _)))| {
            let shared = same_subnet((*a).into(), (*b).into(), *prefix);
            let is_set = [first, second].iter().all(|one| settings(one).is_empty());
            first.name != second.name && shared && !is_set && !is_harmless(first, second, *a)
        })?;
    let settings = [first, second].map(|one| settings(one)).concat();
    let problem = Problem::new(
        format!(
            "{} ({a}) and {} ({b}) are in one subnet",
            first.name, second.name
        ),
        "each answers for its own address only, or a subnet for each",
        "the kernel may answer for both on either, and what is meant for one then goes through the \
         other; with a strict rp_filter it drops what comes by the second",
        Fix::run(&host.name, format!("sudo sysctl -w {}", settings.join(" "))),
    );
    Some(Finding::warn("net.subnets", &[&host.name], problem))
}

/// The settings that an interface lacks to share a subnet.
fn settings(netdev: &Netdev) -> Vec<String> {
    let at = format!("net/ipv4/conf/{}", netdev.name);
    let mut lacking = Vec::new();
    if netdev.arp_ignore.is_none_or(|level| level == 0) {
        lacking.extend([format!("{at}/arp_ignore=1"), format!("{at}/arp_announce=2")]);
    }
    if is_strict(netdev) {
        lacking.push(format!("{at}/rp_filter=2"));
    }
    lacking
}

fn is_strict(netdev: &Netdev) -> bool {
    netdev.rp_filter == Some(STRICT)
}
