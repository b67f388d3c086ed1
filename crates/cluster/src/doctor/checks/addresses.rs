//! The interfaces behind the ports of a host: MTU, addresses, and which address RDMA uses.

use std::collections::BTreeMap;
use std::net::IpAddr;

use spark_ccl_config::Rdma;
use spark_ccl_topology::cages::CageEnd;
use spark_ccl_topology::cluster::{Shape, leading};
use spark_ccl_topology::rdma::Gid;
use spark_ccl_topology::{Cluster, Host, Netdev};

use super::proposals::{Proposal, ipv4, waits};
use super::wires::{Place, Wires, is_ethernet};
use crate::finding::{Finding, Fix, Problem};

/// An Ethernet MTU that fits the largest RDMA packet: 4096 bytes and its headers.
pub(super) const LARGE_PACKETS: u32 = 4200;
/// The MTU that is usual where that fits.
pub(super) const LARGE: u32 = 9000;
/// The command that plans all addresses at once.
const PLAN: &str = "spark-perf netplan plans the addresses of all cables";

pub(super) fn checks(wires: &Wires<'_>, proposals: &[Proposal<'_>], index: usize) -> Vec<Finding> {
    let mut found = Vec::new();
    for place in wires.places.iter().filter(|place| place.host == index) {
        let active = place.cage.ends.iter();
        for end in active.filter(|end| end.is_active() && is_ethernet(end)) {
            found.extend(mtu(wires, place, end));
            found.push(address(wires, proposals, index, end));
        }
    }
    found
}

/// Checks the addresses of several interfaces together.
pub(super) fn of_all(
    cluster: &Cluster<'_>,
    wires: &Wires<'_>,
    proposals: &[Proposal<'_>],
) -> Vec<Finding> {
    let mut found = duplicates(cluster.hosts);
    if cluster.hosts.len() > 1 {
        found.extend(proposals.iter().filter_map(|one| moved(cluster.hosts, one)));
        found.extend(apart(wires, proposals));
        found.extend(bare(wires, cluster.shape == Shape::Apart));
    }
    found
}

fn mtu(wires: &Wires<'_>, place: &Place<'_>, end: &CageEnd<'_>) -> Option<Finding> {
    let host = &wires.hosts[place.host];
    let Netdev { name, mtu, .. } = end.netdev?;
    let packets = host.described(end.device, end.port).mtu;
    let seen = format!("{name} has {mtu}, packets of {packets} bytes");
    if *mtu >= LARGE_PACKETS {
        return Some(Finding::ok("net.mtu", &[&host.name], seen));
    }
    // A switch may not take long packets, and neither may a host that is not known.
    let fix = match wires.direct_at(place.host, name) {
        Some(peer) => {
            let theirs = peer.cage.ends.iter().filter_map(|end| end.netdev);
            let most = theirs.map(|netdev| netdev.mtu).max();
            let mtu = most.filter(|mtu| *mtu >= LARGE_PACKETS).unwrap_or(LARGE);
            Fix::run(&host.name, format!("sudo ip link set {name} mtu {mtu}"))
        }
        None => Fix::look(format!(
            "whether the switch and the other end of the cable take {LARGE}; then set both ends"
        )),
    };
    let wanted = format!("{LARGE}, packets of 4096 bytes");
    let why =
        "small packets cost a fifth of the bandwidth; firmware resets the MTU when it restarts";
    let problem = Problem::new(seen, wanted, why, fix);
    Some(Finding::warn("net.mtu", &[&host.name], problem))
}

/// Whether the port has an address with which RDMA works between hosts.
fn address(
    wires: &Wires<'_>,
    proposals: &[Proposal<'_>],
    index: usize,
    end: &CageEnd<'_>,
) -> Finding {
    const ID: &str = "net.address";
    let host = &wires.hosts[index];
    let name = [host.name.as_str()];
    let choice = host
        .described(end.device, end.port)
        .choice(&Rdma::default());
    let usable = |gid: &Gid| gid.ip().is_ipv4() || !gid.is_link_local();
    let seen = match (&choice, end.netdev) {
        (Ok((gid, why)), _) if usable(gid) => {
            let seen = format!("{} uses {gid}, index {}: {why}", end.name(), gid.index);
            return Finding::ok(ID, &name, seen);
        }
        (_, None) => format!("{} has no network interface here", end.name()),
        (Err(_), Some(netdev)) => format!(
            "{}: its GID table is empty, {} has no address",
            end.name(),
            netdev.name
        ),
        (Ok(_), Some(netdev)) => format!(
            "{} has no address but a link-local one of IPv6",
            netdev.name
        ),
    };
    let proposal = end
        .netdev
        .and_then(|netdev| of(proposals, index, &netdev.name));
    let fix = match (proposal, end.netdev) {
        (Some(one), _) => Fix::run(&host.name, add(one)),
        (None, None) => Fix::look("whether this is a container without --network=host"),
        (None, Some(_)) => Fix::look(match elsewhere(wires, index, end) {
            Some(other) => format!(
                "whether the cable should be in {other}, which has addresses and no link; \
                 otherwise: {PLAN}"
            ),
            None => PLAN.to_owned(),
        }),
    };
    let why =
        "NCCL takes an address that leads nowhere, or none; this library has to try all cables";
    let problem = Problem::new(seen, "an IPv4 address in a subnet of its own", why, fix);
    if wires.hosts.len() > 1 {
        Finding::fail(ID, &name, problem)
    } else {
        Finding::warn(ID, &name, problem)
    }
}

/// A cage of the same host and card that has addresses and no link: the cable may be meant for it.
fn elsewhere<'a>(wires: &'a Wires<'_>, host: usize, end: &CageEnd<'_>) -> Option<&'a str> {
    let has_address = |end: &CageEnd<'_>| end.netdev.is_some_and(|one| ipv4(one).next().is_some());
    let mut others = wires.places.iter().filter(|place| place.host == host);
    let other = others.find(|place| {
        let is_of_card = place
            .cage
            .ends
            .iter()
            .any(|it| it.device.card == end.device.card);
        let waits = !place.cage.is_cabled() && place.cage.ends.iter().all(has_address);
        is_of_card && waits
    });
    other.map(|place| place.cage.name.as_str())
}

/// The proposal for an interface.
fn of<'p, 'a>(
    proposals: &'p [Proposal<'a>],
    host: usize,
    netdev: &str,
) -> Option<&'p Proposal<'a>> {
    let mut all = proposals.iter();
    all.find(|one| one.host == host && one.netdev.name == netdev)
}

fn add(one: &Proposal<'_>) -> String {
    format!(
        "sudo ip addr add {}/{} dev {}",
        one.ip, one.prefix, one.netdev.name
    )
}

/// Ends of one cable in different subnets. The first host keeps its address; the other one gets one
/// more, and the old one stays, since more may depend on it than is known here.
fn moved(hosts: &[Host], one: &Proposal<'_>) -> Option<Finding> {
    let (own, prefix) = ipv4(one.netdev).next()?;
    let (peer, other) = one.peer;
    let (theirs, length) = ipv4(other).next()?;
    let names = [peer, one.host].map(|host| hosts[host].name.as_str());
    let Netdev { name, .. } = one.netdev;
    let problem = Problem::new(
        format!(
            "a cable joins {} ({theirs}/{length}) and {name} ({own}/{prefix}), in different \
             subnets",
            other.name
        ),
        "both ends of a cable in one subnet",
        "ports are matched by their subnets, so this cable carries nothing",
        Fix::run(names[1], add(one)).then(format!(
            "if nothing uses {own}/{prefix} any more, take it away from {name}, since NCCL may \
             prefer it"
        )),
    );
    Some(Finding::fail("net.subnet", &names, problem))
}

/// Ports with an address that lead to none of these hosts, and have no proven cable to one.
fn apart(wires: &Wires<'_>, proposals: &[Proposal<'_>]) -> Vec<Finding> {
    let ends = wires.places.iter().flat_map(|place| {
        let ends = place.cage.ends.iter();
        ends.filter(|end| waits(wires, place.host, end))
            .filter_map(|end| Some((place.host, end.netdev?)))
    });
    let is_proposed = |host: usize, netdev: &Netdev| {
        proposals.iter().any(|one| {
            let both = [(one.host, one.netdev), one.peer];
            let mut both = both.iter();
            both.any(|(of, other)| *of == host && other.name == netdev.name)
        })
    };
    let unknown = |(host, netdev): (usize, &Netdev)| {
        let (ip, prefix) = ipv4(netdev).next().filter(|_| !is_proposed(host, netdev))?;
        let seen = format!(
            "{} has {ip}/{prefix}, and none of these hosts is in that subnet",
            netdev.name
        );
        let look = format!(
            "where its cable leads; to a host that is not named here, all is well; otherwise: \
             {PLAN}"
        );
        Some(Finding::unknown(
            "net.subnet",
            &[&wires.hosts[host].name],
            seen,
            look,
        ))
    };
    ends.filter_map(unknown).collect()
}

/// Hosts without RDMA whose fastest interfaces lead to none of the others. They may be meant for
/// something else.
fn bare(wires: &Wires<'_>, is_apart: bool) -> Vec<Finding> {
    let hosts = wires.hosts.iter().enumerate();
    let all = hosts
        .filter(|(_, host)| host.rdma.is_empty())
        .flat_map(|(index, host)| {
            leading(host)
                .into_iter()
                .map(move |netdev| (index, host, netdev))
        });
    let alone = all.filter(|(index, _, netdev)| !wires.matches(*index, netdev));
    let found = alone.filter_map(|(_, host, netdev)| {
        let (ip, prefix) = ipv4(netdev).next()?;
        let name = [host.name.as_str()];
        let seen = format!(
            "{} has {ip}/{prefix}, and none of these hosts is in that subnet",
            netdev.name
        );
        let look = format!("where the cable of {} leads", netdev.name);
        if !is_apart {
            return Some(Finding::unknown("net.subnet", &name, seen, look));
        }
        let why = "sockets are opened between addresses that reach each other";
        let problem = Problem::new(seen, "a subnet that the hosts share", why, Fix::look(look));
        Some(Finding::warn("net.subnet", &name, problem))
    });
    found.collect()
}

/// Addresses that several interfaces have.
fn duplicates(hosts: &[Host]) -> Vec<Finding> {
    let mut owners: BTreeMap<IpAddr, Vec<(&str, &str)>> = BTreeMap::new();
    for host in hosts {
        let ports = host.ports().filter_map(|(_, port)| host.netdev_of(port));
        let mut netdevs: Vec<_> = ports.chain(leading(host)).collect();
        netdevs.sort_by_key(|netdev| &netdev.name);
        netdevs.dedup_by_key(|netdev| &netdev.name);
        for netdev in netdevs {
            for address in netdev.addresses.iter().filter(|one| one.ip.is_ipv4()) {
                owners
                    .entry(address.ip)
                    .or_default()
                    .push((&host.name, &netdev.name));
            }
        }
    }
    let several = owners.into_iter().filter(|(_, owners)| owners.len() > 1);
    let finding = |(ip, owners): (IpAddr, Vec<(&str, &str)>)| {
        let list: Vec<_> = owners
            .iter()
            .map(|(host, netdev)| format!("{netdev} of {host}"))
            .collect();
        let mut names: Vec<_> = owners.iter().map(|(host, _)| *host).collect();
        names.dedup();
        let problem = Problem::new(
            format!("{} have the address {ip}", list.join(" and ")),
            "an address for each interface",
            "what is sent to the address arrives at either",
            Fix::look(format!("which of them should keep it; {PLAN}")),
        );
        Finding::fail("net.duplicate", &names, problem)
    };
    several.map(finding).collect()
}
