//! Ports without a link whose addresses take packets meant for another interface.

use std::cmp::Reverse;
use std::net::Ipv4Addr;

use spark_ccl_topology::netif::{network, same_subnet};
use spark_ccl_topology::{Host, Netdev};

use super::proposals::ipv4;
use crate::finding::{Finding, Fix, Problem};

/// An interface, and one of its addresses.
type Addressed<'a> = (&'a Netdev, (Ipv4Addr, u8));

/// The kernel keeps the routes of an interface that is up, also without a link. So one that is
/// switched off takes nothing.
pub(super) fn checks(host: &Host) -> Vec<Finding> {
    let all = host.network.netdevs.iter();
    let all = all.filter(|one| one.up && !one.loopback);
    let (linked, dark): (Vec<&Netdev>, Vec<&Netdev>) = all.partition(|one| one.running);
    let linked: Vec<_> = linked.into_iter().flat_map(with_addresses).collect();
    let finding = |dark: Addressed<'_>| {
        let (_, (ip, _)) = dark;
        let first = order(host, dark)?;
        let is_taken = |linked: &&Addressed<'_>| {
            let (_, (own, length)) = **linked;
            same_subnet(ip.into(), own.into(), length)
                && order(host, **linked).is_some_and(|second| first < second)
        };
        Some(described(host, dark, *linked.iter().find(is_taken)?))
    };
    let dark = dark.into_iter().flat_map(with_addresses);
    dark.filter_map(finding).collect()
}

/// Where the route to the subnet of an address is in the kernel's order, if there is one: the
/// narrowest comes first; of equal ones the first in its list, which has the least metric.
fn order(host: &Host, (netdev, (ip, prefix)): Addressed<'_>) -> Option<(Reverse<u8>, usize)> {
    let subnet = (Some(network(ip.into(), prefix)), prefix);
    let mut routes = host.network.routes.iter();
    let place = routes
        .position(|one| one.netdev == netdev.name && (one.destination, one.prefix) == subnet)?;
    Some((Reverse(prefix), place))
}

fn with_addresses(netdev: &Netdev) -> impl Iterator<Item = Addressed<'_>> {
    ipv4(netdev).map(move |address| (netdev, address))
}

fn described(host: &Host, dark: Addressed<'_>, linked: Addressed<'_>) -> Finding {
    let (dark, (ip, prefix)) = dark;
    let (linked, (own, length)) = linked;
    let (dark, linked) = (&dark.name, &linked.name);
    let problem = Problem::new(
        format!("{dark} has no link, and {ip}/{prefix} in the subnet of {linked} ({own}/{length})"),
        "no address in a link's subnet at a port that is not plugged in",
        format!("the kernel may send what is meant for {linked} to {dark}, where it is lost"),
        Fix::look(format!(
            "whether {dark} is meant to have that address: sudo ip addr del {ip}/{prefix} dev \
             {dark} takes it away until the next start, when files of /etc/netplan set it again"
        )),
    );
    Finding::fail("net.unplugged", &[&host.name], problem)
}
