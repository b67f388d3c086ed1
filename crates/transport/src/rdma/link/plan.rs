//! The plan of a rail, common to its successive queue pairs: device, memory, settings, and the
//! ports that it joins.

use spark_ccl_config::Rdma;
use spark_ccl_verbs::ProtectionDomain;

use crate::Geometry;
use crate::rdma::{self, Keys, LocalPort, Registry};

/// All that the queue pairs of a rail are made from.
#[derive(Debug)]
pub(super) struct Plan {
    /// The ports that it joins.
    pub(super) rail: rdma::Rail,
    pub(super) local: LocalPort,
    pub(super) domain: ProtectionDomain,
    /// The MTU of the peer's port.
    pub(super) peer_mtu: u32,
    pub(super) settings: Rdma,
    pub(super) geometry: Geometry,
    /// The local keys of the slots to send from, and of those to receive in.
    pub(super) lkeys: [u32; 2],
    /// The key of the slots that the peer writes.
    pub(super) rkey: u32,
    /// Whether this end starts the tries of a failed rail.
    pub(super) is_first: bool,
}

impl Plan {
    /// The keys of registered memory for the rail.
    pub(super) fn keys(&self, registry: &Registry, start: u64, bytes: usize) -> Option<Keys> {
        registry.keys(start, bytes, self.rail.own.port)
    }
}
