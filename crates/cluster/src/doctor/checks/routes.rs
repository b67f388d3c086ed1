//! How the routes of hosts lead over rails.

use std::cmp::Reverse;
use std::net::IpAddr;

use spark_ccl_topology::cluster::{HostRail, RailEnd};
use spark_ccl_topology::netif::{network, same_subnet};
use spark_ccl_topology::{Cluster, Host, Route};

use super::proposals::ipv4;
use crate::finding::{Finding, Fix, Problem};

/// The name of these findings.
const ID: &str = "pair.route";

/// Problems of the routes of either end of a rail.
pub(super) fn checks(cluster: &Cluster<'_>, rail: &HostRail) -> Vec<Finding> {
    let [a, b] = &rail.ends;
    let ways = [(a, b), (b, a)].into_iter();
    ways.filter_map(|(own, peer)| way(cluster, own, peer.gid.ip()))
        .collect()
}

/// How the routes of one end lead to the address of the other one, if not over the rail.
fn way(cluster: &Cluster<'_>, own: &RailEnd, peer: IpAddr) -> Option<Finding> {
    let host = &cluster.hosts[own.host];
    let covers = |route: &&Route| match route.destination {
        Some(network) => same_subnet(network, peer, route.prefix),
        None => route
            .gateway
            .is_some_and(|gateway| gateway.is_ipv4() == peer.is_ipv4()),
    };
    let routes = host.network.routes.iter().filter(covers);
    // The narrowest; of equal ones the first in the kernel's list, which has the least metric.
    let best = routes.clone().min_by_key(|route| Reverse(route.prefix));
    let mut of_rail = routes.filter(|one| one.netdev == own.netdev && one.destination.is_some());
    if of_rail.next().is_none() {
        return gone(host, own, peer, best);
    }
    let strays = |best: &&Route| {
        best.netdev != own.netdev && !is_meant(cluster, own.host, &best.netdev, peer)
    };
    detour(host, own, peer, best.filter(strays)?)
}

/// Whether an interface is at a rail in the subnet of this address: NVIDIA's recommended set-up has
/// all ports in the link-local subnet, and net.subnets tells of others.
fn is_meant(cluster: &Cluster<'_>, host: usize, netdev: &str, peer: IpAddr) -> bool {
    let ends = cluster.rails.iter().flat_map(|rail| &rail.ends);
    let mut own = ends.filter(|end| end.host == host && end.netdev == netdev);
    own.any(|end| same_subnet(end.gid.ip(), peer, end.gid.prefix.unwrap_or(128)))
}

/// The kernel makes a route to the subnet of each address; somebody has taken it away.
fn gone(host: &Host, own: &RailEnd, peer: IpAddr, instead: Option<&Route>) -> Option<Finding> {
    let netdev = &own.netdev;
    let mut subnets = ipv4(host.netdev(netdev)?);
    let (source, prefix) = subnets.find(|(ip, prefix)| same_subnet((*ip).into(), peer, *prefix))?;
    let seen = format!("{netdev} has {source}/{prefix}, and no route to that subnet");
    let reached = match instead.map(|route| (route.gateway, &route.netdev)) {
        Some((Some(gateway), _)) => format!("reached by way of {gateway}"),
        Some((None, other)) => format!("reached over {other}"),
        None => "not reached".to_owned(),
    };
    let why = if instead.is_some() {
        "what is meant for the cable leaves by another network"
    } else {
        "nothing is sent over the cable, and what arrives by it is not answered"
    };
    let subnet = format!("{}/{prefix}", network(source.into(), prefix));
    let problem = Problem::new(
        format!("{seen}; {peer} is {reached}"),
        format!("a route to {subnet} over {netdev}"),
        why,
        Fix::run(
            &host.name,
            format!("sudo ip route add {subnet} dev {netdev} src {source}"),
        ),
    );
    let finding = if instead.is_some() {
        Finding::warn
    } else {
        Finding::fail
    };
    Some(finding(ID, &[&host.name], problem))
}

/// A route to a peer over another interface, which comes before all that lead over the rail:
/// sockets follow it.
fn detour(host: &Host, own: &RailEnd, peer: IpAddr, other: &Route) -> Option<Finding> {
    let network = other.destination?;
    let (prefix, netdev) = (other.prefix, &other.netdev);
    let problem = Problem::new(
        format!("{peer} is reached over {netdev}, by the route to {network}/{prefix}"),
        format!("over {}, whose cable leads there", own.netdev),
        "the kernel takes the narrowest route, and of those the one with the least metric, so \
         sockets do not use the cable",
        Fix::look(format!(
            "ip route get {peer}; what has set the route: a VPN, a container network, or an older \
             plan of addresses"
        )),
    );
    Some(Finding::warn(ID, &[&host.name], problem))
}
