//! Selects the interfaces that lead to a peer in parallel.

use std::net::{IpAddr, SocketAddr};

use super::Interface;
use super::select::{is_internal, is_link_local};

/// A path to a peer: from an interface to an address of the peer in the same subnet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rail {
    /// The address of the interface.
    pub source: IpAddr,
    /// The index of the peer's address.
    pub target: usize,
}

/// The rails from `own` interfaces, the best first, to a peer: one for each interface that shares a subnet with the
/// peer and is as fast as the first such interface. Bytes are distributed evenly, so a slower interface would only
/// delay the others.
pub fn rails(own: &[Interface], peer: &[SocketAddr]) -> Vec<Rail> {
    let mut found: Vec<(&Interface, Rail)> = Vec::new();
    for one in own {
        let known = found.iter().any(|(other, _)| other.index == one.index);
        let alike = found
            .first()
            .is_none_or(|(best, _)| best.speed == one.speed);
        if known || !alike || one.loopback || is_internal(&one.name) || is_link_local(one.addr) {
            continue;
        }
        let target = peer.iter().enumerate().position(|(index, there)| {
            one.reaches(there.ip())
                // Container networks use the same addresses on every host.
                && own.iter().all(|here| here.addr != there.ip())
                && found.iter().all(|(_, rail)| rail.target != index)
        });
        if let Some(target) = target {
            let source = one.addr;
            found.push((one, Rail { source, target }));
        }
    }
    found.into_iter().map(|(_, rail)| rail).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, index: u32, addr: &str, speed: Option<u32>) -> Interface {
        Interface {
            name: name.to_owned(),
            index,
            addr: addr.parse().unwrap(),
            prefix: 24,
            speed,
            loopback: name == "lo",
        }
    }

    fn peer(addrs: &[&str]) -> Vec<SocketAddr> {
        let socket = |addr: &&str| SocketAddr::new(addr.parse().unwrap(), 4000);
        addrs.iter().map(socket).collect()
    }

    fn targets(own: &[Interface], addrs: &[&str]) -> Vec<usize> {
        let rails = rails(own, &peer(addrs));
        rails.iter().map(|rail| rail.target).collect()
    }

    #[test]
    fn each_shared_subnet_is_a_rail() {
        let own = [
            one("eth0", 2, "10.0.0.1", Some(100)),
            one("eth1", 3, "10.0.1.1", Some(100)),
            one("eth2", 4, "10.0.2.1", Some(100)),
        ];
        let there = ["10.0.1.2", "10.0.0.2", "10.0.9.2"];
        assert_eq!(targets(&own, &there), [1, 0]);
        let source = rails(&own, &peer(&there))[0].source;
        assert_eq!(source, own[0].addr);
    }

    #[test]
    fn a_slower_interface_is_no_rail() {
        let own = [
            one("eth0", 2, "10.0.0.1", Some(100)),
            one("eth1", 3, "10.0.1.1", Some(10)),
            one("eth2", 4, "10.0.2.1", None),
        ];
        assert_eq!(targets(&own, &["10.0.1.2", "10.0.0.2", "10.0.2.2"]), [1]);
        // If the fast interface does not lead to the peer, the next one comes first.
        assert_eq!(targets(&own, &["10.0.1.2", "10.0.2.2"]), [0]);
    }

    #[test]
    fn two_addresses_of_an_interface_are_one_rail() {
        let own = [
            one("eth0", 2, "10.0.0.1", None),
            one("eth0", 2, "10.0.1.1", None),
        ];
        assert_eq!(targets(&own, &["10.0.0.2", "10.0.1.2"]), [0]);
    }

    #[test]
    fn what_does_not_leave_the_host_is_no_rail() {
        let own = [
            one("lo", 1, "127.0.0.1", None),
            one("docker0", 2, "172.17.0.1", None),
            one("eth0", 3, "10.0.0.1", None),
            one("eth1", 4, "10.0.1.1", None),
            one("eth2", 5, "fe80::1", None),
        ];
        let there = ["127.0.0.2", "172.17.0.2", "10.0.0.1", "10.0.1.2", "fe80::2"];
        assert_eq!(targets(&own, &there), [3]);
    }
}
