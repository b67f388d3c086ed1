//! Where the ranks of a communicator are. All of it is alike on every rank.

use spark_ccl_config::{Layout, Links};
use spark_ccl_sched::cost::{Fabric, LinkCost};
use std::collections::BTreeMap;

/// Slots in shared memory, as measured on the machine of `docs/performance.md`.
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

/// How ranks share hosts, and memory within them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Topology {
    pub(crate) ranks: u32,
    pub(crate) hosts: u32,
    /// Ranks of the largest host.
    pub(crate) largest: u32,
    /// Whether ranks of one host share memory.
    pub(crate) shared_memory: bool,
}

impl Topology {
    /// Of ranks of which rank `r` is on the host `host_of[r]`.
    pub(crate) fn new<H: Ord>(host_of: &[H], shared_memory: bool) -> Self {
        let mut sizes = BTreeMap::<&H, u32>::new();
        for host in host_of {
            *sizes.entry(host).or_default() += 1;
        }
        Self {
            ranks: host_of.len() as u32,
            hosts: sizes.len() as u32,
            largest: sizes.into_values().max().unwrap_or(0),
            shared_memory,
        }
    }

    /// Whether there are hosts to distinguish: several, and one of them with several ranks.
    pub(crate) fn has_levels(&self) -> bool {
        self.hosts > 1 && self.largest > 1
    }

    /// The same for those who measure.
    pub(crate) fn layout(&self) -> Layout {
        let links = match (self.shared_memory, self.hosts > 1) {
            (true, false) => Links::SharedMemory,
            (true, true) if self.largest > 1 => Links::Both,
            _ => Links::Tcp,
        };
        Layout {
            links,
            ranks: self.ranks,
            hosts: self.hosts,
        }
    }

    /// What the cost model takes the links for. It knows hosts of equal size whose ranks follow one
    /// another, with one network card each: others are taken for such.
    pub(crate) fn fabric(&self, slot_bytes: usize) -> Fabric {
        let sliced = |cost: LinkCost| LinkCost {
            slice_bytes: slot_bytes as u64,
            ..cost
        };
        let inside = sliced(if self.shared_memory { MEMORY } else { LOOPBACK });
        if self.hosts <= 1 {
            Fabric::Switch(inside)
        } else if self.largest == 1 {
            Fabric::Switch(sliced(NETWORK))
        } else {
            Fabric::Hosts {
                per_host: self.largest,
                cards: 1,
                inside,
                across: sliced(NETWORK),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_counted_by_name() {
        let topology = Topology::new(&["a", "b", "a", "a"], true);
        let expected = Topology {
            ranks: 4,
            hosts: 2,
            largest: 3,
            shared_memory: true,
        };
        assert_eq!(topology, expected);
        assert!(topology.has_levels());
        assert!(!Topology::new(&["a", "b"], true).has_levels());
        assert!(!Topology::new(&["a", "a"], true).has_levels());
    }
}
