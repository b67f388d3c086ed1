//! Proposes addresses that put both ends of a cable into one subnet, each address only once.
//! Proposes one only if it is proven that the cable is there and that the other end is in that
//! subnet.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use spark_ccl_topology::cages::CageEnd;
use spark_ccl_topology::netif::{network, same_subnet};
use spark_ccl_topology::{Host, Netdev};

use super::wires::{Place, Wires, is_ethernet};

/// The most addresses of a subnet that are tried.
const TRIED: u32 = 1024;

/// An address for an interface.
pub(super) struct Proposal<'a> {
    pub(super) host: usize,
    pub(super) netdev: &'a Netdev,
    pub(super) ip: Ipv4Addr,
    pub(super) prefix: u8,
    /// The other end, which keeps its address.
    pub(super) peer: (usize, &'a Netdev),
}

/// The proposals for all hosts.
pub(super) fn proposals<'a>(wires: &Wires<'a>) -> Vec<Proposal<'a>> {
    let mut found: Vec<Proposal<'a>> = Vec::new();
    for (index, place) in wires.places.iter().enumerate() {
        for end in &place.cage.ends {
            let Some(netdev) = end.netdev.filter(|_| waits(wires, place.host, end)) else {
                continue;
            };
            let peer = wires.direct(index).map(|peer| &wires.places[peer]);
            let free = peer.and_then(|peer| kept(wires, place, netdev, peer, &found));
            if let Some((peer, ip, prefix)) = free {
                found.push(Proposal {
                    host: place.host,
                    netdev,
                    ip,
                    prefix,
                    peer,
                });
            }
        }
    }
    found
}

/// Whether an end carries packets, but has no address by which it leads to another host.
pub(super) fn waits(wires: &Wires<'_>, host: usize, end: &CageEnd<'_>) -> bool {
    let leads = |netdev: &Netdev| wires.matches(host, netdev);
    end.is_active() && is_ethernet(end) && end.netdev.is_some_and(|netdev| !leads(netdev))
}

/// The first interface of the other cage that waits for another end, and an address for that.
fn kept<'a>(
    wires: &Wires<'a>,
    place: &Place<'a>,
    netdev: &Netdev,
    peer: &Place<'a>,
    found: &[Proposal<'a>],
) -> Option<((usize, &'a Netdev), Ipv4Addr, u8)> {
    // Of two ends in different subnets, that of the first host keeps its address.
    let is_later = ipv4(netdev).next().is_none() || peer.host < place.host;
    let waiting = peer
        .cage
        .ends
        .iter()
        .filter(|end| is_later && waits(wires, peer.host, end));
    let waiting = waiting.filter_map(|end| end.netdev).filter(|other| {
        let is_taken = |one: &Proposal<'_>| {
            let both = [(one.host, one.netdev), one.peer];
            both.iter()
                .any(|(host, taken)| *host == peer.host && taken.name == other.name)
        };
        !found.iter().any(is_taken)
    });
    let mut with_address = waiting.filter_map(|other| {
        let (ip, prefix) = ipv4(other).find(|(ip, _)| !ip.is_link_local())?;
        let own = free(wires, place.host, ip, prefix, found)?;
        Some(((peer.host, other), own, prefix))
    });
    with_address.next()
}

/// An address of a subnet that no host has, unless this host is in that subnet already.
fn free(
    wires: &Wires<'_>,
    host: usize,
    ip: Ipv4Addr,
    prefix: u8,
    found: &[Proposal<'_>],
) -> Option<Ipv4Addr> {
    let inside = |one: &Ipv4Addr| same_subnet((*one).into(), ip.into(), prefix);
    let given = |of: usize| {
        found
            .iter()
            .filter(move |one| one.host == of)
            .map(|one| one.ip)
    };
    let own = addresses(&wires.hosts[host]).into_iter().chain(given(host));
    if own.into_iter().any(|one| inside(&one)) {
        return None;
    }
    let all = 0..wires.hosts.len();
    let taken: BTreeSet<_> = all
        .flat_map(|of| addresses(&wires.hosts[of]).into_iter().chain(given(of)))
        .collect();
    let IpAddr::V4(first) = network(ip.into(), prefix) else {
        return None;
    };
    let size = 1_u64 << 32_u32.saturating_sub(prefix.into());
    // The first and last address of a subnet are no host's, unless it has but two.
    let (low, high) = if size > 2 {
        (1, size - 2)
    } else {
        (0, size - 1)
    };
    let high = u32::try_from(high)
        .unwrap_or(u32::MAX)
        .min(low as u32 + TRIED);
    let wanted = (host as u32 + 1).clamp(low as u32, high);
    let places = [wanted].into_iter().chain(low as u32..=high);
    let mut all = places.map(|place| Ipv4Addr::from(first.to_bits().wrapping_add(place)));
    all.find(|one| !taken.contains(one))
}

/// All IPv4 addresses of a host.
fn addresses(host: &Host) -> Vec<Ipv4Addr> {
    host.network
        .netdevs
        .iter()
        .flat_map(ipv4)
        .map(|(ip, _)| ip)
        .collect()
}

/// The IPv4 addresses of an interface, and their prefixes.
pub(super) fn ipv4(netdev: &Netdev) -> impl Iterator<Item = (Ipv4Addr, u8)> {
    netdev
        .addresses
        .iter()
        .filter_map(|address| match address.ip {
            IpAddr::V4(ip) => Some((ip, address.prefix)),
            IpAddr::V6(_) => None,
        })
}
