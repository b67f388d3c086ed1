//! The communicator whose links the mesh makes (`LinkOwner`): its ranks, the sizes of its links,
//! and how each peer is reached. Makes no links.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use socket2::Socket;
use spark_ccl_bootstrap::{Error, Session, StreamId, StreamKind, Via};
use spark_ccl_config::{Net, Settings};
use spark_ccl_control::Watch;
use spark_ccl_fork::Unshared;
use spark_ccl_log::Held;
use spark_ccl_sched::Rank;
use spark_ccl_transport::{Bell, Geometry, shm, tcp};

use super::LinkId;
use super::interfaces::Interfaces;
use super::link_id::stream_number;
use super::peer_link::Carrier;
use super::spares::Spares;
use crate::world::World;
use crate::world::deadline::deadline_in;

/// The communicator whose links are made.
pub(crate) struct LinkOwner {
    pub(crate) world: Arc<World>,
    pub(crate) watch: Arc<Watch>,
    pub(crate) context: u64,
    /// World ranks of the members; this rank is `members[rank]`.
    pub(crate) members: Vec<u32>,
    pub(crate) rank: Rank,
    /// Payload bytes of a slot, alike on all links.
    pub(crate) slot_bytes: usize,
    /// Rung by the other ranks to wake this rank up.
    pub(crate) bell: Arc<Bell>,
    /// The interfaces to choose rails of TCP from.
    pub(crate) interfaces: OnceLock<Interfaces>,
    pub(crate) spares: Spares,
}

impl LinkOwner {
    pub(super) fn settings(&self) -> &Settings {
        &self.world.settings
    }

    pub(super) fn describe(&self, peer: Rank) -> String {
        self.world.session.describe(self.members[peer as usize])
    }

    pub(super) fn geometry(&self) -> Geometry {
        Geometry {
            slot_bytes: self.slot_bytes,
            slots: self.settings().slots,
        }
    }

    /// The size of a link through shared memory.
    pub(super) fn size(&self) -> shm::Size {
        let session = &self.world.session;
        let here = |member: &&u32| session.local_to(**member);
        shm::Size::among(self.members.iter().filter(here).count(), self.geometry())
    }

    /// The carrier of the link to a peer, alike on both ends.
    pub(super) fn carrier(&self, peer: Rank) -> Carrier {
        let member = self.members[peer as usize];
        let (session, settings) = (&self.world.session, self.settings());
        if peer == self.rank {
            Carrier::Own
        } else if shares_memory(session, settings, member) {
            Carrier::SharedMemory
        } else if self.tries_rdma(member) {
            Carrier::Rdma
        } else {
            Carrier::Tcp
        }
    }

    /// Whether a peer is reached without the help of other ranks.
    pub(super) fn reaches(&self, peer: Rank) -> bool {
        let [own, member] = [self.rank, peer].map(|rank| self.members[rank as usize]);
        self.world.session.wiring().joins(own, member)
    }

    fn tries_rdma(&self, member: u32) -> bool {
        let own = self.members[self.rank as usize];
        match self.settings().net {
            Net::Rdma => true,
            Net::Auto => {
                !self.world.session.local_to(member)
                    && [own, member]
                        .into_iter()
                        .all(|member| self.world.session.peer(member).rdma_ports > 0)
            }
            Net::Tcp => false,
        }
    }

    /// Asks for a stream of a link.
    pub(super) fn reach(
        &self,
        (peer, lane): LinkId,
        kind: StreamKind,
        socket: u32,
    ) -> Result<(), Error> {
        let member = self.members[peer as usize];
        let stream_id = self.stream_id(kind, lane, socket);
        let ways = match kind {
            StreamKind::SharedMemory => vec![Via::Unix],
            StreamKind::Tcp => self.rails_of_tcp(member, socket),
            _ => vec![Via::ANY],
        };
        let deadline = deadline_in(self.settings().init_timeout);
        self.world.session.reach(member, stream_id, &ways, deadline)
    }

    /// Asks for a spare stream of a link over TCP, preferably not to the `silent` addresses.
    pub(super) fn reach_around(
        &self,
        (peer, lane): LinkId,
        socket: u32,
        silent: &[IpAddr],
    ) -> Result<(), Error> {
        let member = self.members[peer as usize];
        let stream_id = self.stream_id(StreamKind::Tcp, lane, socket);
        let deadline = deadline_in(self.settings().init_timeout.min(tcp::SPARE_WITHIN));
        let ways = (&[Via::ANY][..], silent);
        let session = &self.world.session;
        session.reach_around(member, stream_id, ways, deadline)
    }

    fn stream_id(&self, kind: StreamKind, lane: usize, socket: u32) -> StreamId {
        StreamId {
            context: self.context,
            kind,
            number: stream_number(lane, socket),
        }
    }

    /// The sockets with which a link over TCP begins. Alike on both ends.
    pub(super) fn sockets(&self, peer: Rank) -> usize {
        let is_local = self.world.session.local_to(self.members[peer as usize]);
        self.settings().sockets(is_local)
    }

    /// Sockets of a link take turns on the rails to the peer; where there are none, or one does not
    /// carry, the session finds a way.
    fn rails_of_tcp(&self, member: u32, socket: u32) -> Vec<Via> {
        let _held = Held::new();
        let addresses = &self.world.session.peer(member).addresses;
        let mut ways = self.interfaces().ways(addresses, socket);
        ways.push(Via::ANY);
        ways
    }

    /// The interfaces that a link over TCP should use and to which none of its sockets is bound, in
    /// words, if any.
    pub(super) fn unbound(&self, peer: Rank, sockets: &[Unshared<Socket>]) -> Option<String> {
        let _held = Held::new();
        let member = self.members[peer as usize];
        let addresses = &self.world.session.peer(member).addresses;
        self.interfaces().unbound(addresses, sockets)
    }

    fn interfaces(&self) -> &Interfaces {
        self.interfaces.get_or_init(|| {
            let session = &self.world.session;
            let are_here = self.members.iter().all(|&member| session.local_to(member));
            let found = (!are_here).then(|| Interfaces::find(self.settings()));
            found.and_then(Result::ok).unwrap_or_default()
        })
    }
}

/// Whether a rank's links and registered memory go through shared memory.
pub(crate) fn shares_memory(session: &Session, settings: &Settings, rank: u32) -> bool {
    settings.shm && session.local_to(rank)
}
