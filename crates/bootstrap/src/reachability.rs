//! Whether a peer may be reachable at all, judging by this host's routes and subnets. Pure
//! functions.

use std::net::{IpAddr, SocketAddr};

use crate::address::{Address, needs_scope};
use crate::hello::Endpoint;

/// The facts about a world that are known before one of its ranks is dialled.
pub(crate) struct Reachability<'a> {
    pub(crate) own: &'a [Address],
    /// The addresses of the dialled rank.
    pub(crate) peer: &'a [Endpoint],
    /// The addresses of ranks on other hosts, which may pass connections on.
    pub(crate) others: &'a [Endpoint],
    /// The own address from which the kernel would send to a target; `None` if no route leads
    /// there.
    pub(crate) source_to: &'a dyn Fn(SocketAddr) -> Option<IpAddr>,
}

impl Reachability<'_> {
    /// Whether, by these facts, the peer is out of reach, while other ranks are not.
    pub(crate) fn is_unlikely(&self) -> bool {
        let has_neighbour = self.own.iter().any(|one| self.is_shared(one));
        has_neighbour && !self.peer.iter().any(|target| self.may_reach(target))
    }

    fn may_reach(&self, target: &Endpoint) -> bool {
        if !needs_scope(target.address.ip()) {
            // A source that is not among `own` belongs to an excluded interface.
            let source = (self.source_to)(target.address);
            return source.is_some_and(|ip| self.own.iter().any(|one| one.ip == ip));
        }
        // An interface that shares a subnet with another host's is in that network. If the peer's
        // interface were in it, too, and had routable addresses, it would share the subnet.
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

    /// Whether it is unlikely where the kernel would send from this address.
    fn is_unlikely(own: &[Address], peer: &[Endpoint], others: &[Endpoint], source: &str) -> bool {
        let source_to = |_| source.parse().ok();
        let reachability = Reachability {
            own,
            peer,
            others,
            source_to: &source_to,
        };
        reachability.is_unlikely()
    }

    /// A host of a ring of four, with the addresses of the opposite host and of the neighbours.
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
        assert!(is_unlikely(&own, &peer, &others, ""));
        // Through a gateway of the LAN, which is excluded.
        assert!(is_unlikely(&own, &peer, &others, "192.168.1.7"));
        // Without link-local addresses.
        assert!(is_unlikely(&own[..2], &peer[..2], &others, ""));
    }

    #[test]
    fn a_route_is_enough() {
        let (own, peer, others) = ring();
        assert!(!is_unlikely(&own, &peer, &others, "10.0.4.2"));
    }

    /// The interface's other end may be anywhere.
    #[test]
    fn an_interface_in_no_known_network_may_lead_anywhere() {
        let (mut own_all, peer, others) = ring();
        own_all[3] = own("fe80::2/64", 4);
        assert!(!is_unlikely(&own_all, &peer, &others, ""));
        let (own, mut peer, others) = ring();
        peer[3] = there("fe80::6", 4);
        assert!(!is_unlikely(&own, &peer, &others, ""));
    }

    #[test]
    fn a_rank_that_shares_no_subnet_waits() {
        let (_, peer, others) = ring();
        let own = [own("10.9.0.1/24", 2), own("127.0.0.1/8", 1)];
        assert!(!is_unlikely(&own, &peer, &others, ""));
        // Containers' networks have the same addresses on every host.
        let bridge = own_bridge();
        assert!(!is_unlikely(
            &[bridge],
            &peer,
            &[there("172.17.0.1", 9)],
            ""
        ));
        let (own, peer, _) = ring();
        assert!(!is_unlikely(&own, &peer, &[], ""));
    }

    fn own_bridge() -> Address {
        own("172.17.0.1/16", 9)
    }
}
