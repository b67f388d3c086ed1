//! Where the ranks of a communicator are. All of it is alike on every rank. Knows hosts and ranks;
//! knows no calls.

use std::collections::BTreeMap;

use spark_ccl_config::{Layout, Links};
use spark_ccl_sched::cost::{Fabric, LinkCost};

/// Slots in shared memory, as measured on the machine of `docs/measurements/host.md`.
const MEMORY: LinkCost = LinkCost {
    latency_us: 0.15,
    overhead_us: 0.05,
    wire_us_per_byte: 0.0,
    copy_us_per_byte: 1.0 / 20_000.0,
    reduce_us_per_byte: 1.0 / 16_000.0,
    slice_bytes: 64 << 10,
};

/// TCP within a host, as measured there. The kernel's copies keep the processors busy.
const LOOPBACK: LinkCost = LinkCost {
    latency_us: 0.9,
    overhead_us: 1.5,
    wire_us_per_byte: 0.0,
    copy_us_per_byte: 1.0 / 10_000.0,
    reduce_us_per_byte: 1.0 / 7_500.0,
    slice_bytes: 256 << 10,
};

/// TCP between hosts. The speed of the network is not known: this is that of 25 Gb/s Ethernet.
const NETWORK: LinkCost = LinkCost {
    latency_us: 15.0,
    overhead_us: 2.0,
    wire_us_per_byte: 1.0 / 3_000.0,
    ..LOOPBACK
};

/// One rail of RDMA between hosts; assumed, not measured. 2 us from device to device. Per message
/// the cost of this library without a device (`rdma/link/cost.rs` of the transport: 0.10 to 0.14 us
/// for both ends), and 0.1 us to wake up the device. Half of the 23.7 GB/s that users of two Sparks
/// measure over two rails. One core copies and reduces what came through slots, as over TCP.
const RAIL: LinkCost = LinkCost {
    latency_us: 2.0,
    overhead_us: 0.2,
    wire_us_per_byte: 1.0 / 11_850.0,
    ..LOOPBACK
};

/// The network between ranks that share no memory: their slowest link, alike on every rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Network {
    /// All ranks share memory.
    None,
    /// Some link goes over TCP.
    Tcp,
    /// Every link goes over RDMA, by at least this number of rails.
    Rdma { rails: u32 },
}

impl Network {
    /// The network by the rails of the link that has the fewest; TCP has none.
    pub(crate) fn of_rails(fewest: u32) -> Self {
        match fewest {
            0 => Self::Tcp,
            rails => Self::Rdma { rails },
        }
    }

    pub(crate) fn is_rdma(self) -> bool {
        matches!(self, Self::Rdma { .. })
    }

    /// The costs that the model assumes for a link, within a host or between hosts.
    fn cost(self, within: bool) -> LinkCost {
        match self {
            Self::None => MEMORY,
            Self::Tcp if within => LOOPBACK,
            Self::Tcp => NETWORK,
            Self::Rdma { rails } => LinkCost {
                wire_us_per_byte: RAIL.wire_us_per_byte / f64::from(rails),
                ..RAIL
            },
        }
    }
}

/// How ranks share hosts, and memory within them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Topology {
    pub(crate) ranks: u32,
    pub(crate) hosts: u32,
    /// Ranks of the largest host.
    pub(crate) largest: u32,
    /// Whether ranks of one host share memory.
    pub(crate) shared_memory: bool,
    pub(crate) network: Network,
}

impl Topology {
    /// The topology of ranks, rank `r` being on the host `host_of[r]`.
    pub(crate) fn new<H: Ord>(host_of: &[H], shared_memory: bool, network: Network) -> Self {
        let mut sizes = BTreeMap::<&H, u32>::new();
        for host in host_of {
            *sizes.entry(host).or_default() += 1;
        }
        Self {
            ranks: host_of.len() as u32,
            hosts: sizes.len() as u32,
            largest: sizes.into_values().max().unwrap_or(0),
            shared_memory,
            network,
        }
    }

    /// Whether there are hosts to distinguish: several, and one of them with several ranks.
    pub(crate) fn has_levels(&self) -> bool {
        self.hosts > 1 && self.largest > 1
    }

    /// The same in the terms of the tables of measurements.
    pub(crate) fn layout(&self) -> Layout {
        let links = match (self.network, self.shared_memory && self.largest > 1) {
            (Network::None, _) => Links::SharedMemory,
            (Network::Tcp, true) => Links::SharedMemoryAndTcp,
            (Network::Tcp, false) => Links::Tcp,
            (Network::Rdma { .. }, true) => Links::SharedMemoryAndRdma,
            (Network::Rdma { .. }, false) => Links::Rdma,
        };
        Layout {
            links,
            ranks: self.ranks,
            hosts: self.hosts,
        }
    }

    /// The links as the cost model sees them. It assumes hosts of equal size with consecutive ranks
    /// and one network card each.
    pub(crate) fn fabric(&self, slot_bytes: usize) -> Fabric {
        let sliced = |cost: LinkCost| LinkCost {
            slice_bytes: slot_bytes as u64,
            ..cost
        };
        let inside = if self.shared_memory {
            MEMORY
        } else {
            self.network.cost(true)
        };
        let (inside, across) = (sliced(inside), sliced(self.network.cost(false)));
        if self.hosts <= 1 {
            Fabric::Switch(inside)
        } else if self.largest == 1 {
            Fabric::Switch(across)
        } else {
            Fabric::Hosts {
                per_host: self.largest,
                cards: 1,
                inside,
                across,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_counted_by_name() {
        let topology = Topology::new(&["a", "b", "a", "a"], true, Network::Tcp);
        let expected = Topology {
            ranks: 4,
            hosts: 2,
            largest: 3,
            shared_memory: true,
            network: Network::Tcp,
        };
        assert_eq!(topology, expected);
        assert!(topology.has_levels());
        assert!(!Topology::new(&["a", "b"], true, Network::Tcp).has_levels());
        assert!(!Topology::new(&["a", "a"], true, Network::None).has_levels());
    }

    #[test]
    fn layouts_name_the_slowest_links() {
        let rdma = Network::of_rails(2);
        for (host_of, shared_memory, network, expected) in [
            (&[0, 0][..], true, Network::None, Links::SharedMemory),
            (&[0, 0], false, Network::Tcp, Links::Tcp),
            (&[0, 0], false, rdma, Links::Rdma),
            (&[0, 1], true, Network::of_rails(0), Links::Tcp),
            (&[0, 1], true, rdma, Links::Rdma),
            (&[0, 0, 1], true, Network::Tcp, Links::SharedMemoryAndTcp),
            (&[0, 0, 1], true, rdma, Links::SharedMemoryAndRdma),
            (&[0, 0, 1], false, rdma, Links::Rdma),
        ] {
            let topology = Topology::new(host_of, shared_memory, network);
            assert_eq!(topology.layout().links, expected, "{topology:?}");
        }
    }
}
