//! Which cages are joined, according to the kernels' neighbour tables: an entry with a hardware
//! address of the other cage proves it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use spark_ccl_topology::cages::{Cage, CageEnd};
use spark_ccl_topology::cluster::leading;
use spark_ccl_topology::netif::{is_link_local, same_subnet};
use spark_ccl_topology::{Cluster, Host, Neighbour, NeighbourState, Netdev, Route, cages};

/// The cages of all hosts, and which have heard from each other.
pub(super) struct Wires<'a> {
    pub(super) hosts: &'a [Host],
    pub(super) places: Vec<Place<'a>>,
    /// Indices of places, the lower one first.
    joined: BTreeSet<[usize; 2]>,
    /// The places that have heard from hosts that are not known.
    strange: BTreeSet<usize>,
}

/// A cage of a host.
pub(super) struct Place<'a> {
    pub(super) host: usize,
    pub(super) cage: Cage<'a>,
}

impl<'a> Wires<'a> {
    pub(super) fn of(cluster: &Cluster<'a>) -> Self {
        let hosts = cluster.hosts;
        let all = hosts.iter().enumerate();
        let places = all.flat_map(|(host, one)| {
            let cages = cages(one).into_iter();
            cages.map(move |cage| Place { host, cage })
        });
        let mut wires = Self {
            hosts,
            places: places.collect(),
            joined: BTreeSet::new(),
            strange: BTreeSet::new(),
        };
        for (host, one) in hosts.iter().enumerate() {
            for neighbour in &one.network.neighbours {
                wires.learn(host, neighbour);
            }
        }
        wires
    }

    /// Notes which host has been heard at a cage.
    fn learn(&mut self, host: usize, neighbour: &Neighbour) {
        if let Some([own, other]) = self.heard(host, neighbour) {
            self.joined.insert([own.min(other), own.max(other)]);
        } else if let Some(own) = self.at(host, &neighbour.netdev)
            && neighbour.state == NeighbourState::Known
            && neighbour.mac.is_some()
        {
            self.strange.insert(own);
        }
    }

    /// The cage that has heard from a cage of another host, and that cage.
    pub(super) fn heard(&self, host: usize, neighbour: &Neighbour) -> Option<[usize; 2]> {
        let mac = neighbour.mac.as_ref()?;
        if neighbour.state != NeighbourState::Known {
            return None;
        }
        let own = self.at(host, &neighbour.netdev)?;
        let has = |netdev: &Netdev| netdev.mac.as_ref() == Some(mac);
        Some([own, self.find(host, has)?])
    }

    /// The cage of another host with such an interface.
    pub(super) fn find(&self, host: usize, is: impl Fn(&Netdev) -> bool) -> Option<usize> {
        self.places.iter().position(|place| {
            let mut netdevs = place.cage.ends.iter().filter_map(|end| end.netdev);
            place.host != host && netdevs.any(&is)
        })
    }

    /// The cage of an interface.
    pub(super) fn at(&self, host: usize, netdev: &str) -> Option<usize> {
        self.places.iter().position(|place| {
            let mut netdevs = place.cage.ends.iter().filter_map(|end| end.netdev);
            place.host == host && netdevs.any(|one| one.name == netdev)
        })
    }

    /// The cage at the other end of a cable: neither end has heard from any other. At a switch,
    /// there are more.
    pub(super) fn direct(&self, place: usize) -> Option<usize> {
        let other = self.only(place)?;
        (self.only(other)? == place).then_some(other)
    }

    /// The only cage that a cage has heard from, or that has heard from it.
    fn only(&self, place: usize) -> Option<usize> {
        let pairs = self.joined.iter().filter(|pair| pair.contains(&place));
        let mut others = pairs.map(|&[a, b]| if a == place { b } else { a });
        let only = others.next().filter(|_| others.next().is_none());
        only.filter(|_| !self.strange.contains(&place))
    }

    /// The only cage that is joined with that of an interface.
    pub(super) fn direct_at(&self, host: usize, netdev: &str) -> Option<&Place<'a>> {
        let place = self.direct(self.at(host, netdev)?)?;
        self.places.get(place)
    }

    /// Whether an interface of a host leads to another host: one of its subnets has an address of
    /// another host (also of an interface that is down), or a router is said to lead there.
    pub(super) fn matches(&self, host: usize, netdev: &Netdev) -> bool {
        let others = self.hosts.iter().enumerate();
        let others = others.filter(|(other, _)| *other != host);
        others
            .flat_map(|(_, other)| addresses(other))
            .any(|ip| reaches(netdev, ip) || is_routed(&self.hosts[host], netdev, ip))
    }
}

/// Whether the function is of an Ethernet card, and not one that software makes of an interface.
pub(super) fn is_ethernet(end: &CageEnd<'_>) -> bool {
    end.port.ethernet && end.device.pci.is_some()
}

/// The addresses that other hosts may reach: those of interfaces with RDMA, or that may lead out.
fn addresses(host: &Host) -> impl Iterator<Item = IpAddr> {
    let of_ports = host.ports().filter_map(|(_, port)| host.netdev_of(port));
    let netdevs = of_ports.chain(leading(host));
    netdevs.flat_map(|netdev| netdev.addresses.iter().map(|one| one.ip))
}

fn reaches(netdev: &Netdev, ip: IpAddr) -> bool {
    let mut own = netdev.addresses.iter();
    own.any(|one| !is_link_local(ip) && one.ip != ip && same_subnet(one.ip, ip, one.prefix))
}

/// Whether the host's best route to an address leads over a router, and this interface.
fn is_routed(host: &Host, netdev: &Netdev, ip: IpAddr) -> bool {
    let covers = |route: &&Route| match route.destination {
        Some(network) => same_subnet(network, ip, route.prefix),
        None => route
            .gateway
            .is_some_and(|gateway| gateway.is_ipv4() == ip.is_ipv4()),
    };
    let best = host.network.routes.iter().filter(covers);
    let best = best.max_by_key(|route| route.destination.map_or(0, |_| route.prefix));
    best.is_some_and(|route| route.gateway.is_some() && route.netdev == netdev.name)
}
