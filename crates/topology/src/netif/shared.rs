//! Finds the interfaces of a host that share a subnet.

use std::net::IpAddr;
use std::num::NonZeroU32;

use super::select::is_link_local;
use super::{NetifError, same_subnet};
use crate::model::{Address, Netdev, Route};
use crate::read::{netdevs, routes};

/// The addresses of a host whose subnets contain addresses of its other interfaces, too. The
/// kernel's routes lead to all peers of a shared subnet over the first of the interfaces, whichever
/// address a socket has. A socket bound to an interface stays there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SharedSubnets(Vec<Shared>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Shared {
    address: Address,
    device: NonZeroU32,
    /// Networks within the subnet that a route reaches through a gateway, or over an interface
    /// outside the subnet, such as a tunnel.
    detours: Vec<(IpAddr, u8)>,
}

impl SharedSubnets {
    /// The addresses of this process's network namespace.
    ///
    /// # Errors
    /// When the operating system refuses to list them.
    pub fn here() -> Result<Self, NetifError> {
        let failed = |error: crate::Error| NetifError::List(error.to_string());
        let netdevs = netdevs().map_err(failed)?;
        let shared = Self::of(&netdevs, &[]);
        // A host may have very many routes; they matter only here.
        if shared.0.is_empty() {
            return Ok(shared);
        }
        Ok(Self::of(&netdevs, &routes(&netdevs).map_err(failed)?))
    }

    /// The addresses of these interfaces, with these routes. An interface without a carrier counts:
    /// its route remains, and may be the first.
    fn of(netdevs: &[Netdev], routes: &[Route]) -> Self {
        let netdevs = netdevs.iter();
        let netdevs: Vec<_> = netdevs.filter(|one| one.up && !one.loopback).collect();
        let addresses = netdevs.iter().flat_map(|netdev| {
            let addresses = netdev.addresses.iter();
            addresses.map(move |address| (*netdev, address))
        });
        let addresses = addresses.filter(|(_, address)| !is_link_local(address.ip));
        let shared = addresses.filter_map(|(netdev, address)| {
            let others = netdevs
                .iter()
                .filter(|other| shares(netdev, address, other));
            let others: Vec<_> = others.map(|other| other.name.as_str()).collect();
            let is_usual = |name: &str| name == netdev.name || others.contains(&name);
            let detours = routes.iter();
            let detours = detours.filter_map(|route| detour(address, route, is_usual));
            Some(Shared {
                address: address.clone(),
                device: NonZeroU32::new(netdev.index).filter(|_| !others.is_empty())?,
                detours: detours.collect(),
            })
        });
        Self(shared.collect())
    }

    /// The index of the interface that has this address, if others are in its subnet.
    ///
    /// ```
    /// use spark_ccl_topology::netif::SharedSubnets;
    ///
    /// let own = SharedSubnets::here()?;
    /// assert_eq!(own.device("127.0.0.1".parse().unwrap()), None);
    /// # Ok::<(), spark_ccl_topology::netif::NetifError>(())
    /// ```
    pub fn device(&self, source: IpAddr) -> Option<NonZeroU32> {
        self.get(source).map(|one| one.device)
    }

    /// The index of the interface to bind a socket from `source` to `target` to. `None` if the
    /// address alone selects the interface, or a route leads elsewhere on purpose.
    pub fn device_to(&self, source: IpAddr, target: IpAddr) -> Option<NonZeroU32> {
        let own = self.get(source)?;
        let mut detours = own.detours.iter();
        let leads_elsewhere =
            detours.any(|&(network, prefix)| same_subnet(network, target, prefix));
        let is_near = same_subnet(own.address.ip, target, own.address.prefix);
        let is_own = self.get(target).is_some();
        (is_near && !is_own && !leads_elsewhere).then_some(own.device)
    }

    fn get(&self, ip: IpAddr) -> Option<&Shared> {
        self.0.iter().find(|one| one.address.ip == ip)
    }
}

/// Whether the route to the other interface's subnet may precede that of this address.
fn shares(netdev: &Netdev, own: &Address, other: &Netdev) -> bool {
    let mut theirs = other.addresses.iter();
    other.index != netdev.index
        && theirs.any(|one| one.prefix >= own.prefix && same_subnet(own.ip, one.ip, own.prefix))
}

/// The network of a route that leads away from the subnet of an address.
fn detour(own: &Address, route: &Route, is_usual: impl Fn(&str) -> bool) -> Option<(IpAddr, u8)> {
    let network = route.destination?;
    let is_within = route.prefix >= own.prefix && same_subnet(own.ip, network, own.prefix);
    let leads_away = route.gateway.is_some() || !is_usual(&route.netdev);
    (is_within && leads_away).then_some((network, route.prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn netdev(name: &str, index: u32, addresses: &[(&str, u8)]) -> Netdev {
        let address = |&(ip, prefix): &(&str, u8)| Address {
            ip: ip.parse().unwrap(),
            prefix,
            label: None,
        };
        Netdev {
            name: name.to_owned(),
            index,
            up: true,
            running: true,
            loopback: name == "lo",
            mtu: 1500,
            addresses: addresses.iter().map(address).collect(),
            ..Netdev::default()
        }
    }

    fn route(network: &str, prefix: u8, gateway: Option<&str>, netdev: &str) -> Route {
        Route {
            destination: Some(network.parse().unwrap()),
            prefix,
            gateway: gateway.map(|one| one.parse().unwrap()),
            netdev: netdev.to_owned(),
        }
    }

    fn devices(shared: &SharedSubnets, sources: &[&str]) -> Vec<Option<u32>> {
        let device = |one: &&str| shared.device(one.parse().unwrap()).map(NonZeroU32::get);
        sources.iter().map(device).collect()
    }

    fn to(shared: &SharedSubnets, source: &str, target: &str) -> Option<u32> {
        let device = shared.device_to(source.parse().unwrap(), target.parse().unwrap());
        device.map(NonZeroU32::get)
    }

    #[test]
    fn only_addresses_whose_subnet_others_share_choose_no_interface() {
        let mut unplugged = netdev("c2", 5, &[("169.254.3.3", 16)]);
        unplugged.running = false;
        let netdevs = [
            netdev("lo", 1, &[("127.0.0.1", 8), ("127.0.0.2", 8)]),
            netdev(
                "lan",
                2,
                &[("10.0.0.1", 24), ("10.0.0.2", 24), ("fe80::1", 64)],
            ),
            netdev("c0", 3, &[("169.254.1.1", 16), ("fe80::2", 64)]),
            unplugged,
        ];
        let shared = SharedSubnets::of(&netdevs, &[]);
        let sources = [
            "127.0.0.1",
            "10.0.0.1",
            "fe80::2",
            "169.254.1.1",
            "169.254.3.3",
        ];
        assert_eq!(
            devices(&shared, &sources),
            [None, None, None, Some(3), Some(5)]
        );
        assert_eq!(to(&shared, "169.254.1.1", "169.254.9.9"), Some(3));
        // An address in another subnet, and one of this host itself.
        for elsewhere in ["10.0.0.9", "169.254.3.3"] {
            assert_eq!(to(&shared, "169.254.1.1", elsewhere), None);
        }
        let mut down = netdevs;
        down[3].up = false;
        assert_eq!(
            devices(&SharedSubnets::of(&down, &[]), &["169.254.1.1"]),
            [None]
        );
    }

    /// The narrower route comes first in any case.
    #[test]
    fn a_subnet_within_another_is_not_shared_but_the_wider_one_is() {
        let netdevs = [
            netdev("lan", 2, &[("192.168.0.9", 16)]),
            netdev("cable", 3, &[("192.168.1.9", 24)]),
        ];
        let shared = SharedSubnets::of(&netdevs, &[]);
        assert_eq!(
            devices(&shared, &["192.168.0.9", "192.168.1.9"]),
            [Some(2), None]
        );
    }

    #[test]
    fn ways_through_a_gateway_or_a_tunnel_are_left_alone() {
        let netdevs = [
            netdev("c0", 2, &[("10.0.0.1", 24)]),
            netdev("c1", 3, &[("10.0.0.2", 24)]),
            netdev("wg0", 4, &[("10.9.0.1", 24)]),
        ];
        let routes = [
            route("10.0.0.0", 24, None, "c0"),
            route("10.0.0.0", 24, None, "c1"),
            route("10.0.0.7", 32, Some("10.0.0.254"), "c0"),
            route("10.0.0.64", 26, None, "wg0"),
            route("10.0.0.8", 32, None, "c0"),
            route("10.0.0.0", 8, Some("10.9.0.254"), "wg0"),
        ];
        let shared = SharedSubnets::of(&netdevs, &routes);
        let targets = ["10.0.0.6", "10.0.0.7", "10.0.0.65", "10.0.0.8"];
        let found = targets.map(|target| to(&shared, "10.0.0.2", target));
        assert_eq!(found, [Some(3), None, None, Some(3)]);
    }
}
