//! Finds the rails between two hosts from their addresses and neighbour tables.

use crate::Host;
use crate::model::{NeighbourState, Netdev, PortState};
use crate::netif::{Interface, is_internal, is_link_local, ranked};
use crate::rdma::{self, Candidate, Gid, Port, Roce};

/// A path from a port of one host to a port of another.
#[derive(Debug, Clone, PartialEq)]
pub struct HostRail {
    /// Its ends, the host with the lower index first.
    pub ends: [RailEnd; 2],
    /// Whether it carries RDMA; otherwise it joins network interfaces.
    pub rdma: bool,
    /// The evidence that the ends reach each other.
    pub evidence: Evidence,
}

/// An end of a rail.
#[derive(Debug, Clone, PartialEq)]
pub struct RailEnd {
    /// The index of the host.
    pub host: usize,
    /// The RDMA device, or the network interface.
    pub device: String,
    /// The network interface.
    pub netdev: String,
    /// The address in use.
    pub gid: Gid,
}

/// The evidence that two ports reach each other, the strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Evidence {
    /// One end's neighbour table has the other end's hardware address.
    Heard,
    /// No other ports of these hosts are in the subnet.
    Subnet,
    /// Other ports are in the same subnet; only a probe can tell.
    Perhaps,
    /// One end has asked for the other's address and got no answer.
    Silent,
}

impl HostRail {
    /// The indices of its hosts, the lower one first.
    pub fn hosts(&self) -> [usize; 2] {
        [self.ends[0].host, self.ends[1].host]
    }

    /// Whether neither host has a faster interface that rails may use.
    pub(super) fn is_leading(&self, hosts: &[Host]) -> bool {
        let leads = |end: &RailEnd| {
            let mut netdevs = leading(&hosts[end.host]).into_iter();
            netdevs.any(|netdev| netdev.name == end.netdev)
        };
        self.rdma || self.ends.iter().all(leads)
    }
}

/// The rails between two of the hosts, as the library would choose them. They join RDMA ports if
/// both hosts have any, otherwise network interfaces, of the fastest shared network that answers.
/// Also lists a faster one that is silent. Each port is in at most one rail.
pub fn rails(hosts: &[Host], pair: [usize; 2]) -> Vec<HostRail> {
    let [a, b] = pair.map(|index| &hosts[index]);
    let is_rdma = !a.rdma.is_empty() && !b.rdma.is_empty();
    let mut both = if is_rdma {
        [rdma_ports(a), rdma_ports(b)]
    } else {
        [interfaces(a), interfaces(b)]
    };
    both.iter_mut().for_each(rdma::shorten);
    let Ok(candidates) = rdma::candidates(&both[0], &both[1], true) else {
        return Vec::new();
    };
    let rail = |candidate: &Candidate| {
        let ends = [&candidate.rail.own, &candidate.rail.peer];
        let end = |side: usize| {
            let port = &both[side][ends[side].port];
            RailEnd {
                host: pair[side],
                device: port.device.clone(),
                netdev: port.netdev.clone().unwrap_or_default(),
                gid: ends[side].gid,
            }
        };
        let ends = [end(0), end(1)];
        HostRail {
            evidence: evidence(hosts, &ends, candidate.certain),
            ends,
            rdma: is_rdma,
        }
    };
    let mut found: Vec<_> = candidates.iter().map(rail).collect();
    if !is_rdma {
        keep_fastest(&mut found, |end| {
            let mut netdevs = addressed(&hosts[end.host]);
            let netdev = netdevs.find(|one| one.name == end.netdev);
            netdev.map_or(0, |one| rank(&hosts[end.host], one))
        });
    }
    // Evidence decides between ports in one subnet; without it they keep their order.
    found.sort_by_key(|rail| rail.evidence);
    distinct(found)
}

/// Keeps the rails of the fastest network that answers, and of silent ones that would be at least
/// as fast. A network is as fast as its slower end.
fn keep_fastest(found: &mut Vec<HostRail>, rank: impl Fn(&RailEnd) -> u32) {
    let speed = |rail: &HostRail| rank(&rail.ends[0]).min(rank(&rail.ends[1]));
    let answering = found
        .iter()
        .filter(|rail| rail.evidence != Evidence::Silent);
    let fastest = answering.map(speed).max();
    let fastest = fastest.or_else(|| found.iter().map(speed).max());
    found.retain(|rail| match rail.evidence {
        Evidence::Silent => Some(speed(rail)) >= fastest,
        _ => Some(speed(rail)) == fastest,
    });
}

/// The rails with the best evidence. No two have a port in common.
fn distinct(found: Vec<HostRail>) -> Vec<HostRail> {
    let mut rails: Vec<HostRail> = Vec::new();
    for rail in found {
        let shares = |other: &HostRail| {
            let same = |side: usize| other.ends[side].device == rail.ends[side].device;
            same(0) || same(1)
        };
        if !rails.iter().any(shares) {
            rails.push(rail);
        }
    }
    rails
}

/// The network interfaces that rails may use: those of RDMA ports with a link, or on a host without
/// RDMA devices, the fastest ones that lead to other hosts.
pub fn leading(host: &Host) -> Vec<&Netdev> {
    if host.rdma.is_empty() {
        return fastest(host).collect();
    }
    let active = host
        .ports()
        .filter(|(_, port)| port.state == PortState::Active);
    active
        .filter_map(|(_, port)| host.netdev_of(port))
        .collect()
}

/// The network interfaces with an address but no link, on a host without RDMA devices; the ports of
/// those tell more. Bridges and tunnels have no cable.
pub fn dark(host: &Host) -> Vec<&Netdev> {
    let has_cable = |netdev: &&Netdev| netdev.pci.is_some() || is_virtual_pair(netdev);
    let netdevs = addressed(host).filter(|one| host.rdma.is_empty() && !one.running);
    netdevs.filter(has_cable).collect()
}

fn rdma_ports(host: &Host) -> Vec<Port> {
    let active = host
        .ports()
        .filter(|(_, port)| port.state == PortState::Active && !port.gids.is_empty());
    active
        .map(|(device, port)| host.described(device, port))
        .collect()
}

/// The network interfaces that may lead to another host, described like ports.
fn interfaces(host: &Host) -> Vec<Port> {
    let port = |netdev: &Netdev| Port {
        device: netdev.name.clone(),
        number: 1,
        pci: netdev.pci.clone(),
        netdev: Some(netdev.name.clone()),
        mtu: netdev.mtu,
        speed: netdev.speed,
        gids: Interface::of(netdev, false)
            .iter()
            .filter(|one| !is_link_local(one.addr))
            .map(gid)
            .collect(),
    };
    leading_out(host)
        .map(port)
        .filter(|port| !port.gids.is_empty())
        .collect()
}

/// The fastest of the interfaces that lead to other hosts.
fn fastest(host: &Host) -> impl Iterator<Item = &Netdev> {
    let fastest = leading_out(host).map(|one| rank(host, one)).max();
    leading_out(host).filter(move |one| Some(rank(host, one)) == fastest)
}

/// The interfaces that lead to other hosts. One of a pair of virtual interfaces leads to a
/// container, unless this is the container, which has no other.
fn leading_out(host: &Host) -> impl Iterator<Item = &Netdev> {
    let netdevs = addressed(host).filter(|one| one.running);
    let has_other = netdevs.clone().any(|one| !is_virtual_pair(one));
    netdevs.filter(move |one| !(has_other && is_virtual_pair(one)))
}

/// The speed by which the library ranks an interface, in Mbit/s.
pub fn rank(host: &Host, netdev: &Netdev) -> u32 {
    let mut ports = host.ports();
    let rdma = ports.any(|(_, port)| port.netdev.as_deref() == Some(&netdev.name));
    ranked(netdev.speed, rdma)
}

/// The interfaces meant to lead to other hosts: those with an address.
fn addressed(host: &Host) -> impl Iterator<Item = &Netdev> + Clone {
    let has_address = |netdev: &Netdev| {
        let mut addresses = netdev.addresses.iter();
        addresses.any(|one| !is_link_local(one.ip))
    };
    let netdevs = host.network.netdevs.iter();
    netdevs.filter(move |one| !one.loopback && !is_internal(&one.name) && has_address(one))
}

/// Whether it is one of a pair of virtual interfaces. Those claim 10 Gbit/s wherever the other end
/// leads.
fn is_virtual_pair(netdev: &Netdev) -> bool {
    netdev.pci.is_none() && netdev.name.starts_with("veth")
}

fn gid(interface: &Interface) -> Gid {
    Gid {
        index: 0,
        address: match interface.addr {
            std::net::IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            std::net::IpAddr::V6(ip) => ip,
        },
        roce: Roce::V2,
        prefix: Some(interface.prefix),
    }
}

fn evidence(hosts: &[Host], ends: &[RailEnd; 2], certain: bool) -> Evidence {
    let heard = |from: usize, to: usize| {
        let [here, there] = [&ends[from], &ends[to]];
        let mac = hosts[there.host].netdev(&there.netdev)?.mac.as_deref()?;
        let mut known = hosts[here.host].network.neighbours.iter();
        let from_there =
            |mac_of: &Option<String>| mac_of.as_deref().is_some_and(|other| other == mac);
        known
            .any(|one| one.netdev == here.netdev && from_there(&one.mac))
            .then_some(())
    };
    let silent = |from: usize, to: usize| {
        let mut known = hosts[ends[from].host].network.neighbours.iter();
        known.any(|one| {
            one.netdev == ends[from].netdev
                && one.ip == ends[to].gid.ip()
                && one.state != NeighbourState::Known
        })
    };
    if heard(0, 1).or(heard(1, 0)).is_some() {
        Evidence::Heard
    } else if silent(0, 1) || silent(1, 0) {
        Evidence::Silent
    } else if certain {
        Evidence::Subnet
    } else {
        Evidence::Perhaps
    }
}
