//! The order of the routes to a peer. Pure functions.
//!
//! Networks that both hosts share come first, the fastest before the others; then addresses behind
//! a router. Link-local IPv6 addresses come last: every interface has one, and it does not tell
//! which network the interface is in.

use std::cmp::Reverse;
use std::net::IpAddr;

use crate::address::{Address, needs_scope};
use crate::dial::Route;
use crate::hello::Endpoint;

/// The quality of a route; less is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Grade {
    Shared(Reverse<u32>),
    Routed,
    /// `true` if its ends differ in speed, as the ends of a cable do not.
    LinkLocal(bool, Reverse<u32>),
}

/// The routes to `targets`, best first; equal ones keep their order. With a `source`, only those
/// from there.
pub(crate) fn routes(own: &[Address], targets: &[Endpoint], source: Option<Address>) -> Vec<Route> {
    let from: Vec<Address> = match source {
        None => own.to_vec(),
        Some(source) => {
            let known = own.iter().copied().find(|one| one.ip == source.ip);
            let device = source.device;
            vec![Address {
                device,
                ..known.unwrap_or(source)
            }]
        }
    };
    let joined = joined(own, targets);
    let is_of_family =
        |target: &&Endpoint| source.is_none_or(|one| one.ip.is_ipv4() == target.address.is_ipv4());
    let mut ranked = Vec::new();
    for target in targets.iter().filter(is_of_family) {
        if needs_scope(target.address.ip()) {
            ranked.extend(link_local(&from, target, &joined, source.is_some()));
        } else {
            let bound = source.and(from.first().copied());
            let route = Route::Tcp {
                source: bound,
                target: target.address,
            };
            ranked.push((grade(&from, target), route));
        }
    }
    ranked.sort_by_key(|(grade, _)| *grade);
    ranked.into_iter().map(|(_, route)| route).collect()
}

/// Puts the routes to these addresses of a peer last, in the addresses' order.
pub(crate) fn put_last(routes: &mut [Route], silent: &[IpAddr]) {
    routes.sort_by_key(|route| match route {
        Route::Tcp { target, .. } => silent.iter().position(|one| *one == target.ip()),
        _ => None,
    });
}

/// The grade of an address that is not link-local.
fn grade(own: &[Address], target: &Endpoint) -> Grade {
    let ip = target.address.ip();
    let sharing = own.iter().filter(|one| one.reaches(ip));
    // Within the host is faster than any network.
    let speeds = sharing.map(|one| {
        if one.ip == ip {
            u32::MAX
        } else {
            speed(one, target)
        }
    });
    speeds
        .max()
        .map_or(Grade::Routed, |fastest| Grade::Shared(Reverse(fastest)))
}

/// The routes to a link-local address: one from each interface that may share its network.
fn link_local<'a>(
    own: &'a [Address],
    target: &'a Endpoint,
    joined: &'a [[u32; 2]],
    is_bound: bool,
) -> impl Iterator<Item = (Grade, Route)> + 'a {
    let here = own.iter().filter(|one| needs_scope(one.ip));
    let may_reach = |one: &&Address| may_reach(one.interface, target.interface, joined);
    here.filter(may_reach).map(move |one| {
        let there = Address {
            ip: target.address.ip(),
            ..*one
        };
        let route = Route::Tcp {
            source: is_bound.then_some(*one),
            target: there.with_port(target.address.port()),
        };
        let differ = one.speed != target.speed;
        (Grade::LinkLocal(differ, Reverse(speed(one, target))), route)
    })
}

/// The pairs of interfaces, own and the peer's, that share a subnet.
fn joined(own: &[Address], targets: &[Endpoint]) -> Vec<[u32; 2]> {
    let scopeless = |ip| !needs_scope(ip);
    let pairs = targets.iter().flat_map(|target| {
        let ip = target.address.ip();
        let sharing = own
            .iter()
            .filter(move |one| one.reaches(ip) && scopeless(ip));
        sharing.map(|one| [one.interface, target.interface])
    });
    pairs.filter(|pair| !pair.contains(&0)).collect()
}

/// Whether an own interface may be in one network with the peer's. They share a subnet; or neither
/// shares one with another interface, which would place it in the other's network.
fn may_reach(own: u32, peer: u32, joined: &[[u32; 2]]) -> bool {
    joined.contains(&[own, peer]) || !joined.iter().any(|pair| pair[0] == own || pair[1] == peer)
}

/// The speed of a network: that of its slower end, as far as known.
fn speed(own: &Address, target: &Endpoint) -> u32 {
    match (own.speed, target.speed) {
        (0, other) | (other, 0) => other,
        (a, b) => a.min(b),
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    /// An address like `10.0.0.1/24`, of this interface and speed.
    fn own(text: &str, interface: u32, speed: u32) -> Address {
        let (ip, prefix) = text.split_once('/').unwrap();
        Address {
            ip: ip.parse().unwrap(),
            prefix: prefix.parse().unwrap(),
            interface,
            speed,
            device: None,
        }
    }

    fn target(ip: &str, interface: u32, speed: u32) -> Endpoint {
        Endpoint {
            address: SocketAddr::new(ip.parse().unwrap(), 1),
            interface,
            speed,
        }
    }

    fn names(routes: &[Route]) -> Vec<String> {
        routes.iter().map(Route::name).collect()
    }

    /// The interfaces of the n-th host, with two cages, a LAN and a radio.
    fn host(n: u32) -> Vec<(String, u32, u32)> {
        let interface = |index: u32, speed: u32| {
            let v4 = (format!("10.0.{index}.{n}"), index, speed);
            // Randomised, as by privacy extensions: the bits say nothing.
            let v6 = (
                format!("fe80::{:x}", index * 7919 % 97 + 1000 * n),
                index,
                speed,
            );
            [v4, v6]
        };
        let all = [
            interface(2, 1_000),
            interface(3, 600),
            interface(4, 200_000),
        ];
        all.into_iter().flatten().collect()
    }

    fn own_host(n: u32) -> Vec<Address> {
        let prefix = |ip: &str| if ip.contains(':') { 64 } else { 24 };
        let one = |(ip, index, speed): (String, u32, u32)| {
            own(&format!("{ip}/{}", prefix(&ip)), index, speed)
        };
        host(n).into_iter().map(one).collect()
    }

    fn target_host(n: u32) -> Vec<Endpoint> {
        let one = |(ip, index, speed): (String, u32, u32)| target(&ip, index, speed);
        host(n).into_iter().map(one).collect()
    }

    #[test]
    fn the_fastest_shared_network_comes_first_and_link_local_addresses_last() {
        let routes = routes(&own_host(1), &target_host(2), None);
        let names = names(&routes);
        assert_eq!(names[..3], ["10.0.4.2:1", "10.0.2.2:1", "10.0.3.2:1"]);
        // Each link-local address only over the interface that shares a subnet with its own.
        assert_eq!(names.len(), 6);
        let scopes: Vec<_> = names[3..]
            .iter()
            .map(|name| name.split_once('%').unwrap().1)
            .collect();
        assert_eq!(scopes, ["4]:1", "2]:1", "3]:1"]);
    }

    #[test]
    fn what_is_silent_comes_last() {
        let mut routes = routes(&own_host(1), &target_host(2), None);
        let silent = ["10.0.2.2", "10.0.4.2"].map(|ip| ip.parse().unwrap());
        put_last(&mut routes, &silent);
        let names = names(&routes);
        assert_eq!(names[..1], ["10.0.3.2:1"]);
        assert_eq!(names[4..], ["10.0.2.2:1", "10.0.4.2:1"]);
    }

    #[test]
    fn a_network_is_as_fast_as_its_slower_end() {
        let own = [own("10.0.0.1/24", 2, 10_000), own("10.0.1.1/24", 3, 2_500)];
        let there = [target("10.0.0.2", 2, 1_000), target("10.0.1.2", 3, 2_500)];
        assert_eq!(
            names(&routes(&own, &there, None)),
            ["10.0.1.2:1", "10.0.0.2:1"]
        );
        // For a rendezvous, only this end's speeds are known.
        let there = there.map(|one| one.address.into());
        assert_eq!(
            names(&routes(&own, &there, None)),
            ["10.0.0.2:1", "10.0.1.2:1"]
        );
    }

    #[test]
    fn what_a_router_leads_to_comes_after_shared_networks() {
        let own = [
            own("192.168.7.2/24", 2, 1_000),
            own("10.1.2.3/24", 3, 1_000),
        ];
        let there = [
            target("2001:db8::1", 2, 100_000),
            target("10.1.3.1", 3, 100_000),
            target("192.168.7.9", 4, 1_000),
        ];
        let expected = ["192.168.7.9:1", "[2001:db8::1]:1", "10.1.3.1:1"];
        assert_eq!(names(&routes(&own, &there, None)), expected);
    }

    #[test]
    fn an_own_address_is_the_fastest() {
        let own = [own("10.0.0.1/24", 2, 200_000), own("127.0.0.1/8", 1, 1_000)];
        let there = [
            target("10.0.0.2", 2, 200_000),
            target("127.0.0.1", 1, 1_000),
        ];
        assert_eq!(names(&routes(&own, &there, None))[0], "127.0.0.1:1");
    }

    #[test]
    fn a_source_chooses_family_and_interface() {
        let from = Some("10.1.2.3".parse::<IpAddr>().unwrap().into());
        let own = [
            own("192.168.7.2/24", 2, 1_000),
            own("10.1.2.3/24", 3, 1_000),
        ];
        let there = [
            target("2001:db8::1", 2, 0),
            target("192.168.7.9", 2, 0),
            target("10.1.2.9", 3, 0),
        ];
        assert_eq!(
            names(&routes(&own, &there, from)),
            ["10.1.2.9:1 from 10.1.2.3", "192.168.7.9:1 from 10.1.2.3"]
        );
    }

    /// Pairs of interfaces of equal speed, as joined by a cable, come first.
    #[test]
    fn link_local_addresses_alone_are_tried_over_all_interfaces() {
        let own = [own("fe80::5/64", 3, 1_000), own("fe80::6/64", 4, 200_000)];
        let there = [target("fe80::8", 8, 1_000), target("fe80::9", 9, 200_000)];
        let expected = [
            "[fe80::9%4]:1",
            "[fe80::8%3]:1",
            "[fe80::8%4]:1",
            "[fe80::9%3]:1",
        ];
        assert_eq!(names(&routes(&own, &there, None)), expected);
        // The scope of a rendezvous' address is valid on its own host only.
        let there: [Endpoint; 1] = [SocketAddr::new(there[0].address.ip(), 1).into()];
        assert_eq!(names(&routes(&own, &there, None)).len(), 2);
    }

    #[test]
    fn interfaces_without_a_common_subnet_are_left_for_each_other() {
        // Interface 2 is known to lead to 2. Only 3 is left for 4, which has only link-local
        // addresses.
        let own = [
            own("10.0.0.1/24", 2, 1_000),
            own("fe80::2/64", 2, 1_000),
            own("fe80::3/64", 3, 200_000),
        ];
        let there = [target("10.0.0.2", 2, 1_000), target("fe80::4", 4, 200_000)];
        assert_eq!(
            names(&routes(&own, &there, None)),
            ["10.0.0.2:1", "[fe80::4%3]:1"]
        );
    }
}
