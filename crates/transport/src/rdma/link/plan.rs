//! What the queue pairs of a rail have in common, one after the other.

use spark_ccl_config::Rdma;
use spark_ccl_verbs::ProtectionDomain;

use crate::Geometry;
use crate::rdma::{self, Keys, LocalPort, Registry};

/// What the queue pairs of a rail are made from.
#[derive(Debug)]
pub(super) struct Plan {
    /// The ports that it joins.
    pub(super) rail: rdma::Rail,
    pub(super) local: LocalPort,
    pub(super) domain: ProtectionDomain,
    /// The payload bytes of a packet at the peer's port.
    pub(super) peer_mtu: u32,
    pub(super) settings: Rdma,
    pub(super) geometry: Geometry,
    /// The key of the slots to send from, and that of those to receive in.
    pub(super) lkeys: [u32; 2],
    /// The key of the slots that the peer writes.
    pub(super) rkey: u32,
    /// This end is the one that tries whether a rail that has failed carries again.
    pub(super) is_first: bool,
}

impl Plan {
    /// The names of registered memory for the rail.
    pub(super) fn keys(&self, registry: &Registry, start: u64, bytes: usize) -> Option<Keys> {
        registry.keys(start, bytes, self.rail.own.port)
    }
}
