//! Interfaces with addresses in one subnet that lead to different networks.

use spark_ccl_topology::netif::same_subnet;
use spark_ccl_topology::{Host, Netdev};

use super::proposals::ipv4;
use super::wires::Wires;
use crate::finding::{Finding, Fix, Problem};

/// Compares the cables of a host with its other networks.
pub(super) fn checks(wires: &Wires<'_>, index: usize) -> Vec<Finding> {
    let host = &wires.hosts[index];
    let others: Vec<_> = others(host).collect();
    let ports = host.ports().filter_map(|(_, port)| host.netdev_of(port));
    let pairs = ports.filter(|one| one.running).flat_map(|port| {
        let others = others.iter();
        others.filter_map(move |other| Some((port, *other, overlap(port, other)?)))
    });
    let finding = |(port, other, subnet): (&Netdev, &Netdev, String)| {
        let direct = wires.direct_at(index, &port.name);
        described(host, [port, other], &subnet, direct.is_some())
    };
    pairs.map(finding).collect()
}

/// The interfaces of other cards: no RDMA device has them.
fn others(host: &Host) -> impl Iterator<Item = &Netdev> {
    let is_port = |netdev: &Netdev| {
        let mut ports = host.ports().filter_map(|(_, port)| host.netdev_of(port));
        ports.any(|port| port.name == netdev.name)
    };
    let all = host.network.netdevs.iter();
    all.filter(move |one| one.running && !one.loopback && !is_port(one))
}

/// The subnet that both have addresses in.
fn overlap(port: &Netdev, other: &Netdev) -> Option<String> {
    ipv4(port)
        .filter(|(ip, _)| !ip.is_link_local())
        .find_map(|(own, prefix)| {
            let (ip, length) = ipv4(other)
                .find(|(ip, length)| same_subnet(own.into(), (*ip).into(), prefix.min(*length)))?;
            Some(format!(
                "{} ({own}/{prefix}) and {} ({ip}/{length})",
                port.name, other.name
            ))
        })
}

/// A cable that leads to one host is no part of the other network; one to a switch may be.
fn described(host: &Host, netdevs: [&Netdev; 2], subnet: &str, direct: bool) -> Finding {
    const ID: &str = "net.overlap";
    let [port, other] = netdevs.map(|netdev| netdev.name.as_str());
    let problem = Problem::new(
        format!("{subnet} are in one subnet"),
        format!("a subnet of its own for the cable of {port}"),
        "what is sent to an address of this subnet takes whichever interface the kernel lists \
         first",
        Fix::look(format!(
            "which subnet {other} got from its network, and give the cable another one at both \
             ends; spark-perf netplan plans the addresses of all cables (--network)"
        )),
    );
    let name = [host.name.as_str()];
    if direct {
        Finding::fail(ID, &name, problem)
    } else {
        Finding::warn(ID, &name, problem)
    }
}
