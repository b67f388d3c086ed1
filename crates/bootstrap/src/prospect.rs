//! Whether a peer may be reached at all, as far as this host's routes and subnets tell. Pure
//! functions.

use std::net::{IpAddr, SocketAddr};

use crate::address::{Address, needs_scope};
use crate::hello::Endpoint;

/// What is known of a world before a rank of it is called.
pub(crate) struct Prospect<'a> {
    pub(crate) own: &'a [Address],
    /// The addresses of the rank to be called.
    pub(crate) peer: &'a [Endpoint],
    /// Those of the ranks of other hosts, which may pass connections on.
    pub(crate) others: &'a [Endpoint],
    /// The own address from which the kernel would send to another one; `None` if no route leads
    /// there.
    pub(crate) source_to: &'a dyn Fn(SocketAddr) -> Option<IpAddr>,
}

impl Prospect<'_> {
    /// Whether the peer is out of reach for all that is known, while other ranks are not.
    pub(crate) fn is_poor(&self) -> bool {
        let has_neighbour = self.own.iter().any(|one| self.is_shared(one));
        has_neighbour && !self.peer.iter().any(|target| self.may_reach(target))
    }

    /// Whether the peer may be reached past the interfaces, of both hosts, that have these
    /// addresses.
    pub(crate) fn leads_around(&self, used: &[IpAddr]) -> bool {
        let taken = |ips: &mut dyn Iterator<Item = (IpAddr, u32)>| -> Vec<u32> {
            let taken = ips.filter(|(ip, interface)| used.contains(ip) && *interface != 0);
            taken.map(|(_, interface)| interface).collect()
        };
        let own_taken = taken(&mut self.own.iter().map(|one| (one.ip, one.interface)));
        let peer_taken = taken(
            &mut self
                .peer
                .iter()
                .map(|one| (one.address.ip(), one.interface)),
        );
        let is_free = |ip: IpAddr, interface: u32, taken: &[u32]| {
            !used.contains(&ip) && !taken.contains(&interface)
        };
        let own = self.own.iter().copied();
        let own: Vec<_> = own
            .filter(|one| is_free(one.ip, one.interface, &own_taken))
            .collect();
        let peer = self.peer.iter().copied();
        let peer: Vec<_> = peer
            .filter(|one| is_free(one.address.ip(), one.interface, &peer_taken))
            .collect();
        let rest = Prospect {
            own: &own,
            peer: &peer,
            ..*self
        };
        peer.iter().any(|target| rest.may_reach(target))
    }

    fn may_reach(&self, target: &Endpoint) -> bool {
        if !needs_scope(target.address.ip()) {
            // A source that may not be used is of an interface that was left out.
            let source = (self.source_to)(target.address);
            return source.is_some_and(|ip| self.own.iter().any(|one| one.ip == ip));
        }
        // An interface that shares a subnet with another host's is in that network. The peer's
        // would share the subnet, too, if it were in that network and has such addresses.
        let is_elsewhere = self
            .peer
            .iter()
            .any(|other| other.interface == target.interface && !needs_scope(other.address.ip()));
        let mut own = self.own.iter().filter(|one| needs_scope(one.ip));
        own.any(|one| !is_elsewhere || !self.is_placed(one.interface))
    }

    /// Whether an interface shares a subnet with another host's.
    fn is_placed(&self, interface: u32) -> bool {
        let mut own = self.own.iter();
        own.any(|one| one.interface == interface && self.is_shared(one))
    }

    fn is_shared(&self, one: &Address) -> bool {
        let shares = |ip| one.ip != ip && one.reaches(ip);
        let mut others = self.others.iter().map(|other| other.address.ip());
        !one.ip.is_loopback() && !needs_scope(one.ip) && others.any(shares)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(text: &str, interface: u32) -> Address {
        let (ip, prefix) = text.split_once('/').unwrap();
        Address {
            prefix: prefix.parse().unwrap(),
            interface,
            ..ip.parse::<IpAddr>().unwrap().into()
        }
    }

    fn there(ip: &str, interface: u32) -> Endpoint {
        Endpoint {
            address: SocketAddr::new(ip.parse().unwrap(), 1),
            interface,
            speed: 0,
        }
    }

    /// Whether the prospect is poor where the kernel would send from this address.
    fn is_poor(own: &[Address], peer: &[Endpoint], others: &[Endpoint], source: &str) -> bool {
        let source_to = |_| source.parse().ok();
        let prospect = Prospect {
            own,
            peer,
            others,
            source_to: &source_to,
        };
        prospect.is_poor()
    }

    /// Whether a link over the first network of these hosts may go around it, where the kernel would
    /// send to other networks from this address.
    fn leads_around(own: &[Address], peer: &[Endpoint], others: &[Endpoint], from: &str) -> bool {
        let source_to = |_| from.parse().ok();
        let prospect = Prospect {
            own,
            peer,
            others,
            source_to: &source_to,
        };
        prospect.leads_around(&[own[0].ip, peer[0].address.ip()])
    }

    #[test]
    fn only_another_network_leads_around_a_cable() {
        let cable = [own("10.0.1.1/24", 2), own("fe80::1/64", 2)];
        let there_too = [there("10.0.1.2", 2), there("fe80::2", 2)];
        let second = [own("10.9.1.1/24", 2)];
        assert!(!leads_around(&cable, &there_too, &[], "10.0.1.1"));
        let addresses = [&cable[..], &second].concat();
        let more = [&there_too[..], &[there("10.9.1.2", 2)]].concat();
        assert!(
            !leads_around(&addresses, &more, &[], "10.9.1.1"),
            "the same cable"
        );
        let lan = [&cable[..], &[own("192.168.1.1/24", 3)]].concat();
        let behind = [&there_too[..], &[there("192.168.7.2", 3)]].concat();
        assert!(leads_around(&lan, &behind, &[], "192.168.1.1"));
        assert!(
            !leads_around(&lan, &behind, &[], "10.0.1.1"),
            "routed over the cable"
        );
        assert!(
            !leads_around(&lan, &there_too, &[], "192.168.1.1"),
            "the peer has none"
        );
        let unknown = [&cable[..], &[own("fe80::3/64", 3)]].concat();
        let unknown_there = [&there_too[..], &[there("fe80::4", 3)]].concat();
        assert!(
            leads_around(&unknown, &unknown_there, &[], ""),
            "a link-local network"
        );
    }

    /// Other cables lead to other hosts.
    #[test]
    fn a_neighbour_in_a_ring_without_a_lan_has_one_network() {
        let (own, _, others) = ring();
        let next = [
            there("10.0.1.2", 2),
            there("10.0.2.1", 3),
            there("fe80::7", 2),
            there("fe80::8", 3),
        ];
        assert!(!leads_around(&own, &next, &others, ""));
    }

    /// A host of a ring of four, with the addresses of the one opposite and of its neighbours.
    fn ring() -> ([Address; 4], [Endpoint; 4], [Endpoint; 4]) {
        (
            [
                own("10.0.1.1/24", 2),
                own("10.0.4.2/24", 3),
                own("fe80::1/64", 2),
                own("fe80::2/64", 3),
            ],
            [
                there("10.0.2.2", 2),
                there("10.0.3.1", 3),
                there("fe80::5", 2),
                there("fe80::6", 3),
            ],
            [
                there("10.0.1.2", 2),
                there("10.0.2.1", 3),
                there("10.0.3.2", 2),
                there("10.0.4.1", 3),
            ],
        )
    }

    #[test]
    fn the_opposite_host_of_a_ring_is_out_of_reach() {
        let (own, peer, others) = ring();
        assert!(is_poor(&own, &peer, &others, ""));
        // By a gateway of the LAN, which is not to be used.
        assert!(is_poor(&own, &peer, &others, "192.168.1.7"));
        // Without link-local addresses.
        assert!(is_poor(&own[..2], &peer[..2], &others, ""));
    }

    #[test]
    fn a_route_is_a_prospect() {
        let (own, peer, others) = ring();
        assert!(!is_poor(&own, &peer, &others, "10.0.4.2"));
    }

    /// Its other end may be anywhere.
    #[test]
    fn an_interface_in_no_known_network_is_a_prospect() {
        let (mut own_all, peer, others) = ring();
        own_all[3] = own("fe80::2/64", 4);
        assert!(!is_poor(&own_all, &peer, &others, ""));
        let (own, mut peer, others) = ring();
        peer[3] = there("fe80::6", 4);
        assert!(!is_poor(&own, &peer, &others, ""));
    }

    #[test]
    fn a_rank_that_shares_no_subnet_waits() {
        let (_, peer, others) = ring();
        let own = [own("10.9.0.1/24", 2), own("127.0.0.1/8", 1)];
        assert!(!is_poor(&own, &peer, &others, ""));
        // Containers' networks have the same addresses on every host.
        let bridge = own_bridge();
        assert!(!is_poor(&[bridge], &peer, &[there("172.17.0.1", 9)], ""));
        let (own, peer, _) = ring();
        assert!(!is_poor(&own, &peer, &[], ""));
    }

    fn own_bridge() -> Address {
        own("172.17.0.1/16", 9)
    }
}
