//! The interfaces behind the ports of a host: MTU, addresses, and which address RDMA uses.

use std::net::{IpAddr, Ipv4Addr};

use spark_ccl_config::Rdma;
use spark_ccl_topology::cages::CageEnd;
use spark_ccl_topology::cluster::leading;
use spark_ccl_topology::netif::same_subnet;
use spark_ccl_topology::rdma::Gid;
use spark_ccl_topology::{Cluster, Host, Netdev, cages};

use crate::doctor::finding::{Finding, Problem};

/// An Ethernet MTU that fits the largest RDMA packet: 4096 bytes and its headers.
const LARGE_PACKETS: u32 = 4200;

pub(super) fn checks(cluster: &Cluster<'_>, index: usize) -> Vec<Finding> {
    let host = &cluster.hosts[index];
    let mut found = Vec::new();
    for cage in cages(host) {
        let active: Vec<_> = cage.ends.iter().filter(|end| end.is_active()).collect();
        for end in &active {
            found.extend(mtu(host, end));
            found.push(address(cluster, index, end));
        }
        found.extend(twins(host, &active));
    }
    if host.rdma.is_empty() {
        found.extend(bare(cluster, index));
    }
    found
}

/// Interfaces of a host that have an address, but lead to none of the others.
pub(super) fn alone<'a>(cluster: &Cluster<'a>, index: usize) -> Vec<(&'a Netdev, Ipv4Addr, u8)> {
    let own = leading(&cluster.hosts[index]).into_iter();
    let unused = own.filter(|netdev| !cluster.joins(index, &netdev.name));
    unused
        .filter_map(|netdev| ipv4(netdev).map(|(ip, prefix)| (netdev, ip, prefix)))
        .collect()
}

/// Interfaces of a host without RDMA that have no address, while another host has an address for them.
fn bare(cluster: &Cluster<'_>, index: usize) -> Vec<Finding> {
    let others = (0..cluster.hosts.len()).filter(|other| *other != index);
    let waiting = others.flat_map(|other| alone(cluster, other)).count();
    let host = &cluster.hosts[index];
    let own = leading(host).into_iter();
    let without = own.filter(|netdev| ipv4(netdev).is_none()).take(waiting);
    without
        .map(|netdev| missing(cluster, index, &netdev.name))
        .collect()
}

fn mtu(host: &Host, end: &CageEnd<'_>) -> Option<Finding> {
    let Netdev { name, mtu, .. } = end.netdev?;
    let packets = host.described(end.device, end.port).mtu;
    let seen = format!("{name} has {mtu}, packets of {packets} bytes");
    if *mtu >= LARGE_PACKETS {
        return Some(Finding::ok("net.mtu", &[&host.name], seen));
    }
    Some(Finding::warn(
        "net.mtu",
        &[&host.name],
        Problem {
            seen,
            wanted: "9000, packets of 4096 bytes".to_owned(),
            why: "small packets cost a fifth of the bandwidth; firmware resets the MTU when it restarts".to_owned(),
            fix: format!("sudo ip link set {name} mtu 9000"),
        },
    ))
}

/// Whether the port has an address with which RDMA works between hosts.
fn address(cluster: &Cluster<'_>, index: usize, end: &CageEnd<'_>) -> Finding {
    let host = &cluster.hosts[index];
    let name = [host.name.as_str()];
    let netdev = end.port.netdev.as_deref().unwrap_or("no interface");
    let choice = host
        .described(end.device, end.port)
        .choice(&Rdma::default());
    let usable = |gid: &Gid| gid.ip().is_ipv4() || !gid.is_link_local();
    match choice {
        Ok((gid, why)) if usable(&gid) => {
            let seen = format!("{} uses {gid}, index {}: {why}", end.name(), gid.index);
            Finding::ok("net.address", &name, seen)
        }
        _ => missing(cluster, index, netdev),
    }
}

fn missing(cluster: &Cluster<'_>, index: usize, netdev: &str) -> Finding {
    Finding::fail(
        "net.address",
        &[&cluster.hosts[index].name],
        Problem {
            seen: format!("{netdev} has no address but a link-local one of IPv6"),
            wanted: "an IPv4 address in a subnet of its own".to_owned(),
            why: "NCCL takes an address that leads nowhere, or none; this library has to try all cables"
                .to_owned(),
            fix: format!("sudo ip addr add {} dev {netdev}", proposal(cluster, index)),
        },
    )
}

/// Twins in one subnet: only probes find out which leads where.
fn twins(host: &Host, active: &[&CageEnd<'_>]) -> Option<Finding> {
    let netdevs = active.iter().filter_map(|end| end.netdev);
    let addresses: Vec<_> = netdevs
        .filter_map(|netdev| Some((netdev, ipv4(netdev)?)))
        .collect();
    let [(first, (a, prefix)), (second, (b, _)), ..] = addresses.as_slice() else {
        return None;
    };
    let shared = same_subnet(IpAddr::V4(*a), IpAddr::V4(*b), *prefix);
    // NVIDIA's recommended set-up has all ports in the link-local subnet, and the library probes there.
    if !shared || a.is_link_local() {
        return None;
    }
    Some(Finding::warn(
        "net.subnets",
        &[&host.name],
        Problem {
            seen: format!(
                "{} ({a}) and {} ({b}) are in one subnet",
                first.name, second.name
            ),
            wanted: "a subnet for each".to_owned(),
            why: "the kernel answers for both on either, so that one of them carries nothing"
                .to_owned(),
            fix: format!(
                "sudo ip addr del {b}/{prefix} dev {0} && sudo ip addr add {1} dev {0}",
                second.name,
                beyond(*b, *prefix)
            ),
        },
    ))
}

/// An address, with its prefix, that joins the first port of another host that no rail uses.
pub(super) fn proposal(cluster: &Cluster<'_>, index: usize) -> String {
    let others = (0..cluster.hosts.len()).filter(|other| *other != index);
    let mut free = others.flat_map(|other| alone(cluster, other));
    let free = free.next().map(|(_, ip, prefix)| (ip, prefix));
    let (ip, prefix) = free.unwrap_or((Ipv4Addr::new(10, 0, 0, 0), 24));
    let taken: Vec<_> = cluster.hosts.iter().flat_map(addresses).collect();
    let base = ip.to_bits() & !0xff;
    let own = (index as u32 + 1..255).find(|last| !taken.contains(&Ipv4Addr::from(base | last)));
    format!("{}/{prefix}", Ipv4Addr::from(base | own.unwrap_or(254)))
}

/// The same place in the next subnet.
fn beyond(ip: Ipv4Addr, prefix: u8) -> String {
    let step = 1_u32.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
    format!(
        "{}/{prefix}",
        Ipv4Addr::from(ip.to_bits().wrapping_add(step))
    )
}

fn addresses(host: &Host) -> Vec<Ipv4Addr> {
    let all = host
        .network
        .netdevs
        .iter()
        .flat_map(|netdev| &netdev.addresses);
    all.filter_map(|address| match address.ip {
        IpAddr::V4(ip) => Some(ip),
        IpAddr::V6(_) => None,
    })
    .collect()
}

/// The first IPv4 address of an interface, and its prefix.
fn ipv4(netdev: &Netdev) -> Option<(Ipv4Addr, u8)> {
    netdev
        .addresses
        .iter()
        .find_map(|address| match address.ip {
            IpAddr::V4(ip) => Some((ip, address.prefix)),
            IpAddr::V6(_) => None,
        })
}
