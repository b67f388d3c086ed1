//! The connections between hosts: rails, cables, and the shape that they form. Pure functions of
//! the hosts' models.

mod cables;
mod rails;
mod shape;

pub use cables::{Cable, CableEnd};
pub use rails::{Evidence, HostRail, RailEnd, dark, leading, rails, rank};
pub use shape::Shape;

use crate::Host;

/// Several hosts and the connections between them.
#[derive(Debug, Clone, PartialEq)]
pub struct Cluster<'a> {
    /// The hosts.
    pub hosts: &'a [Host],
    /// All rails between two of them.
    pub rails: Vec<HostRail>,
    /// The cables, each with its rails.
    pub cables: Vec<Cable>,
    /// The way in which the hosts are joined.
    pub shape: Shape,
}

impl<'a> Cluster<'a> {
    /// Finds the connections between these hosts, from their models alone.
    pub fn of(hosts: &'a [Host]) -> Self {
        let pairs = (0..hosts.len()).flat_map(|b| (0..b).map(move |a| [a, b]));
        let mut pairs: Vec<_> = pairs.collect();
        pairs.sort_unstable();
        let rails: Vec<_> = pairs
            .into_iter()
            .flat_map(|pair| rails::rails(hosts, pair))
            .collect();
        let all: Vec<_> = (0..rails.len()).collect();
        let fastest = all
            .iter()
            .copied()
            .filter(|&rail| rails[rail].is_leading(hosts));
        let mut cables = cables::cables(hosts, &rails, fastest);
        let mut shape = shape::shape(hosts.len(), &cables);
        if shape == Shape::Apart {
            // Slower networks join hosts that the fastest ones do not.
            cables = cables::cables(hosts, &rails, all);
            shape = shape::shape(hosts.len(), &cables);
        }
        Self {
            hosts,
            rails,
            cables,
            shape,
        }
    }

    /// The rails between two of the hosts.
    pub fn between(&self, a: usize, b: usize) -> impl Iterator<Item = &HostRail> {
        let pair = [a.min(b), a.max(b)];
        self.rails.iter().filter(move |rail| rail.hosts() == pair)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Address, NeighbourState, PortState};
    use crate::testing::{self, Recorded};

    /// The cables of a cluster as text: hosts, cages, and how many rails each carries.
    fn cables(cluster: &Cluster<'_>) -> Vec<String> {
        let text = |cable: &Cable| {
            let [a, b] = &cable.ends;
            let rails = cable.rails.len();
            format!("{} {} - {} {}: {rails}", a.host, a.name, b.host, b.name)
        };
        cluster.cables.iter().map(text).collect()
    }

    fn hosts(recorded: &[Recorded]) -> Vec<Host> {
        testing::hosts(recorded)
    }

    #[test]
    fn a_pair_has_a_cable_with_two_rails() {
        let hosts = hosts(&testing::pair());
        let cluster = Cluster::of(&hosts);
        assert_eq!(cluster.shape, Shape::Pair);
        assert_eq!(cables(&cluster), ["0 p0 - 1 p0: 2"]);
        let names: Vec<_> = cluster
            .between(1, 0)
            .map(|rail| [0, 1].map(|side| rail.ends[side].device.as_str()))
            .collect();
        assert_eq!(names, [["rocep1s0f0"; 2], ["roceP2p1s0f0"; 2]]);
        let heard = |rail: &HostRail| rail.rdma && rail.evidence == Evidence::Heard;
        assert!(cluster.rails.iter().all(heard));
    }

    #[test]
    fn a_ring_has_a_cable_between_each_two() {
        let hosts = hosts(&testing::ring());
        let cluster = Cluster::of(&hosts);
        assert_eq!(cluster.shape, Shape::Ring);
        let expected = ["0 p0 - 1 p1: 2", "0 p1 - 2 p0: 2", "1 p0 - 2 p1: 2"];
        assert_eq!(cables(&cluster), expected);
    }

    #[test]
    fn a_ring_that_is_cut_is_a_chain_and_two_cuts_leave_a_host_alone() {
        let mut hosts = hosts(&testing::ring());
        let cut = |host: &mut Host, cage: u8| {
            for device in [format!("rocep1s0f{cage}"), format!("roceP2p1s0f{cage}")] {
                host.port_mut(&device).state = PortState::Down;
            }
        };
        cut(&mut hosts[0], 0);
        assert_eq!(Cluster::of(&hosts).shape, Shape::Chain);
        cut(&mut hosts[0], 1);
        assert_eq!(Cluster::of(&hosts).shape, Shape::Apart);
        assert_eq!(Cluster::of(&hosts[..1]).shape, Shape::Single);
    }

    #[test]
    fn a_switch_joins_a_cage_with_all_others() {
        let hosts = hosts(&testing::switch());
        let cluster = Cluster::of(&hosts);
        assert_eq!(cluster.shape, Shape::Switch);
        assert_eq!((cluster.cables.len(), cluster.rails.len()), (6, 12));
    }

    #[test]
    fn what_was_heard_decides_among_equal_subnets() {
        let mut recorded = testing::pair();
        // All ports are in the link-local subnet, as in NVIDIA's recommended set-up, and twins hear
        // each other crosswise.
        let macs = |host: &mut Recorded| {
            ["enP2p1s0f0np0", "enp1s0f0np0"].map(|name| host.netdev(name).mac.clone().unwrap())
        };
        let macs: Vec<_> = recorded.iter_mut().map(macs).collect();
        for (index, host) in recorded.iter_mut().enumerate() {
            host.network.neighbours.clear();
            for (place, name) in ["enp1s0f0np0", "enP2p1s0f0np0"].into_iter().enumerate() {
                host.neighbour(name, "fe80::1", &macs[1 - index][place]);
            }
        }
        let mut hosts = hosts(&recorded);
        for (index, host) in hosts.iter_mut().enumerate() {
            for device in &mut host.rdma {
                for gid in device.ports[0]
                    .gids
                    .iter_mut()
                    .filter(|gid| gid.ip().is_ipv4())
                {
                    let last = u16::from(device.name.contains('P')) * 16 + index as u16 + 1;
                    gid.address = [0, 0, 0, 0, 0, 0xffff, 0xa9fe, last].into();
                    gid.prefix = Some(16);
                }
            }
        }
        let cluster = Cluster::of(&hosts);
        let names: Vec<_> = cluster
            .rails
            .iter()
            .map(|rail| [0, 1].map(|side| rail.ends[side].device.as_str()))
            .collect();
        let expected = [
            ["rocep1s0f0", "roceP2p1s0f0"],
            ["roceP2p1s0f0", "rocep1s0f0"],
        ];
        assert_eq!(names.len(), 2);
        assert!(
            expected.iter().all(|pair| names.contains(pair)),
            "{names:?}"
        );
    }

    #[test]
    fn rails_are_those_of_the_ports_that_ranks_describe() {
        let mut hosts = hosts(&testing::pair());
        for host in &mut hosts {
            let mut device = host.rdma[0].clone();
            device.ports[0].state = PortState::Active;
            host.rdma = vec![device; 40];
            for (place, device) in host.rdma.iter_mut().enumerate() {
                device.name = format!("mlx5_{place}");
            }
        }
        assert_eq!(Cluster::of(&hosts).rails.len(), 32);
    }

    #[test]
    fn interfaces_of_containers_are_no_rails() {
        let mut hosts = hosts(&testing::pair());
        let address = |ip: &str, prefix| Address {
            ip: ip.parse().unwrap(),
            prefix,
            label: None,
        };
        for host in &mut hosts {
            host.rdma.clear();
            let netdevs = &mut host.network.netdevs;
            netdevs.retain(|one| one.loopback || one.name == "enP7s7");
            let lan = host.netdev_mut("enP7s7");
            (lan.pci, lan.speed) = (Some("0007:01:00.0".to_owned()), Some(1000));
            let mut veth = lan.clone();
            "veth0a1b2c3".clone_into(&mut veth.name);
            (veth.pci, veth.speed) = (None, Some(10_000));
            veth.addresses = vec![address("fe80::1", 64)];
            host.network.netdevs.push(veth);
        }
        let cable = ["0 enP7s7 - 1 enP7s7: 1"];
        assert_eq!(cables(&Cluster::of(&hosts)), cable);
        // Some container networks give an address to the host's end.
        for (index, host) in hosts.iter_mut().enumerate() {
            let own = address(&format!("10.88.0.{}", index + 1), 24);
            host.netdev_mut("veth0a1b2c3").addresses.push(own);
        }
        assert_eq!(cables(&Cluster::of(&hosts)), cable);
        // In a container, nothing else leads to other hosts.
        for host in &mut hosts {
            host.network.netdevs.retain(|one| one.name != "enP7s7");
        }
        let cable = ["0 veth0a1b2c3 - 1 veth0a1b2c3: 1"];
        assert_eq!(cables(&Cluster::of(&hosts)), cable);
    }

    #[test]
    fn hosts_without_rdma_are_joined_by_interfaces() {
        let mut hosts = hosts(&testing::pair());
        for host in &mut hosts {
            host.rdma.clear();
        }
        let cluster = Cluster::of(&hosts);
        // The local network is slower, so it is no rail.
        assert_eq!(cluster.rails.len(), 2);
        assert!(cluster.rails.iter().all(|rail| !rail.rdma));
        for neighbour in &mut hosts[0].network.neighbours {
            neighbour.mac = None;
            neighbour.state = NeighbourState::Failed;
        }
        hosts[1].network.neighbours.clear();
        let cluster = Cluster::of(&hosts);
        // Both cables are named, but the local network carries the data.
        let names = |is_silent: bool| {
            let rails = cluster.rails.iter();
            let rails = rails.filter(|rail| (rail.evidence == Evidence::Silent) == is_silent);
            rails
                .map(|rail| rail.ends[0].netdev.as_str())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(true), ["enp1s0f0np0", "enP2p1s0f0np0"]);
        assert_eq!(names(false), ["enP7s7"]);
        assert_eq!(cables(&cluster).len(), 2);
        let lan = hosts[0].netdev_mut("enP7s7");
        lan.running = false;
        assert_eq!(Cluster::of(&hosts).rails.len(), 2);
    }

    /// In a ring without RDMA, opposite hosts share only the local network.
    #[test]
    fn a_slower_network_joins_what_cables_do_not() {
        let mut hosts = hosts(&testing::ring());
        for host in &mut hosts {
            host.rdma.clear();
        }
        let ring = Cluster::of(&hosts);
        assert_eq!(ring.shape, Shape::Ring);
        let is_lan = |rail: &&HostRail| rail.ends[0].netdev == "enP7s7";
        assert_eq!(ring.rails.iter().filter(is_lan).count(), 0);
        // A cable is unplugged, so the two hosts meet in the local network; their other cables lead
        // elsewhere.
        for host in &mut hosts[..2] {
            for netdev in &mut host.network.netdevs {
                let ips = netdev.addresses.iter().map(|one| one.ip.to_string());
                let is_cut = |ip: String| ip.starts_with("10.0.0.") || ip.starts_with("10.0.1.");
                netdev.running &= !ips.into_iter().any(is_cut);
            }
        }
        let chain = Cluster::of(&hosts);
        let lan: Vec<_> = chain.between(0, 1).collect();
        assert!(!lan.is_empty() && lan.iter().all(is_lan), "{lan:?}");
        assert_eq!(chain.shape, Shape::Chain);
    }
}
