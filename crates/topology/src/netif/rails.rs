//! Selects the interfaces that lead to a peer in parallel.

use std::net::IpAddr;

use super::Interface;
use super::select::{is_internal, is_link_local};

/// An address of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerAddress {
    /// The address.
    pub ip: IpAddr,
    /// The index of its interface on the peer's host; 0 if it is not known.
    pub interface: u32,
    /// The speed of its interface in Mbit/s, as the peer ranks it; 0 if it is not known.
    pub speed: u32,
}

/// A path to a peer: from an interface to an address of the peer in the same subnet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rail {
    /// The address of the interface.
    pub source: IpAddr,
    /// The index of the peer's address.
    pub target: usize,
}

/// The rails from `own` interfaces to a peer: the fastest of the networks that both share, each
/// interface of either at most once. Bytes are distributed evenly, so a slower network would only
/// delay the others. A network is as fast as its slower end.
pub fn rails(own: &[Interface], peer: &[PeerAddress]) -> Vec<Rail> {
    let shared: Vec<_> = shared(own, peer).collect();
    let fastest = shared.iter().map(|one| one.speed).max();
    let mut taken: Vec<&Shared<'_>> = Vec::new();
    for one in shared.iter().filter(|one| Some(one.speed) == fastest) {
        if !taken
            .iter()
            .any(|other| other.has_an_interface_of(one, peer))
        {
            taken.push(one);
        }
    }
    let rail = |one: &&Shared<'_>| Rail {
        source: one.own.addr,
        target: one.target,
    };
    taken.iter().map(rail).collect()
}

/// A network that an interface shares with an address of a peer.
struct Shared<'a> {
    own: &'a Interface,
    target: usize,
    speed: u32,
}

impl Shared<'_> {
    fn has_an_interface_of(&self, other: &Shared<'_>, peer: &[PeerAddress]) -> bool {
        let [here, there] = [self, other].map(|one| peer[one.target].interface);
        self.own.index == other.own.index
            || self.target == other.target
            || (here != 0 && here == there)
    }
}

/// The networks that lead to a peer, in the order of the interfaces, then of the peer's addresses.
fn shared<'a>(
    own: &'a [Interface],
    peer: &'a [PeerAddress],
) -> impl Iterator<Item = Shared<'a>> + 'a {
    let leads_out =
        |one: &&Interface| !one.loopback && !is_internal(&one.name) && !is_link_local(one.addr);
    own.iter().filter(leads_out).flat_map(move |one| {
        let reached = peer.iter().enumerate().filter(move |(_, there)| {
            // Container networks use the same addresses on every host.
            one.reaches(there.ip) && own.iter().all(|here| here.addr != there.ip)
        });
        reached.map(move |(target, there)| Shared {
            own: one,
            target,
            speed: match there.speed {
                0 => one.rank(),
                speed => one.rank().min(speed),
            },
        })
    })
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
            rdma: false,
            loopback: name == "lo",
        }
    }

    /// These addresses, each on an interface of its own with unknown speed.
    fn peer(addrs: &[&str]) -> Vec<PeerAddress> {
        let addrs = addrs.iter().zip(1..);
        let address = |(addr, interface): (&&str, u32)| PeerAddress {
            ip: addr.parse().unwrap(),
            interface,
            speed: 0,
        };
        addrs.map(address).collect()
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
    fn the_fastest_shared_network_is_the_rail_wherever_it_stands() {
        let own = [
            one("lan", 2, "10.0.0.1", Some(1_000)),
            one("radio", 3, "10.0.1.1", None),
            one("cable", 4, "10.0.2.1", Some(200_000)),
        ];
        assert_eq!(targets(&own, &["10.0.1.2", "10.0.0.2", "10.0.2.2"]), [2]);
        // Without the cable, the radio ranks the same as the LAN.
        assert_eq!(targets(&own, &["10.0.1.2", "10.0.0.2"]), [1, 0]);
        // A cable to another host does not lead to this one.
        assert_eq!(targets(&own, &["10.0.9.2", "10.0.0.2"]), [1]);
    }

    #[test]
    fn an_rdma_device_of_unknown_speed_is_fast() {
        let mut own = [
            one("lan", 2, "10.0.0.1", Some(10_000)),
            one("cable", 3, "10.0.1.1", None),
        ];
        assert_eq!(targets(&own, &["10.0.0.2", "10.0.1.2"]), [0]);
        own[1].rdma = true;
        assert_eq!(targets(&own, &["10.0.0.2", "10.0.1.2"]), [1]);
    }

    #[test]
    fn a_network_is_as_fast_as_its_slower_end() {
        let own = [
            one("lan", 2, "10.0.0.1", Some(10_000)),
            one("cable", 3, "10.0.1.1", Some(2_500)),
        ];
        let mut there = peer(&["10.0.0.2", "10.0.1.2"]);
        (there[0].speed, there[1].speed) = (1_000, 2_500);
        assert_eq!(rails(&own, &there)[0].target, 1);
        assert_eq!(rails(&own, &there).len(), 1);
    }

    #[test]
    fn two_addresses_of_the_peers_interface_are_one_rail() {
        let own = [
            one("eth0", 2, "10.0.0.1", None),
            one("eth1", 3, "10.0.1.1", None),
        ];
        let mut there = peer(&["10.0.0.2", "10.0.1.2"]);
        there[1].interface = there[0].interface;
        assert_eq!(rails(&own, &there).len(), 1);
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
