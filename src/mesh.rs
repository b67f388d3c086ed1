//! Links between the ranks of a communicator, made when they are used first.
//!
//! A link carries messages between two ranks. The rank that needs a link first asks for it, and
//! depends only on the other rank's session thread. The other rank finds the link when it needs it,
//! too. Streams that this rank's session thread delivers stay in the inbox until the engine looks
//! there, which it does when an operation lacks a link.

mod inbox;
mod interfaces;
mod link_id;
mod owner;
pub(crate) mod peer_link;
mod rails;
mod shared;
mod sockets;
mod spares;
mod stream_handler;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use inbox::{Inbox, InboxEvent, Outcome, Push};
#[cfg(feature = "cuda")]
pub(crate) use link_id::SLOTS_LANE;
pub(crate) use link_id::{LANES, LinkId, POINT_TO_POINT_LANE, index};
pub(crate) use owner::{LinkOwner, shares_memory};
use sockets::Sockets;
pub(crate) use spares::Spares;
use spark_ccl_bootstrap::{Error as BootstrapError, StreamEnd, StreamKind};
use spark_ccl_config::SingleCopy;
use spark_ccl_sched::Rank;
use spark_ccl_transport::{LinkError, LinkRx, LinkTx, shm};
use stream_handler::handle_streams;

use crate::mesh::peer_link::{Carrier, PeerLink};

/// Both halves of a link.
pub(crate) type Halves = (Box<dyn LinkTx>, Box<dyn LinkRx>);

/// Makes a communicator's links.
pub(crate) struct Mesh {
    owner: Arc<LinkOwner>,
    inbox: Arc<Inbox>,
    /// The links that are asked for, or on which the peer has begun, and that this rank has not
    /// taken yet.
    forming: HashMap<LinkId, Stage>,
    /// Links that their peers have not taken yet. A peer rings when it takes one; nothing arrives
    /// before.
    awaited: Vec<(LinkId, shm::Chime)>,
    /// Peers to which TCP carries the data although there are ports.
    without_rails: BTreeSet<Rank>,
    /// Peers for which it was logged that an interface may carry nothing.
    unbound: BTreeSet<Rank>,
    /// By rank: its link, as far as that is known.
    peers: Vec<PeerLink>,
    /// A link has made progress since `has_grown` was last called.
    has_grown: bool,
}

/// Accepts links that peers ask for. To be opened once the links' engine exists.
pub(crate) struct LinkAcceptor {
    owner: Arc<LinkOwner>,
    inbox: Arc<Inbox>,
}

impl LinkAcceptor {
    /// From now on, the session delivers the links that peers ask for, and pushes the engine. Links
    /// asked for earlier are delivered by this call, so the caller must not hold the engine.
    pub(crate) fn open(self, push: Push) {
        handle_streams(&self.owner, &self.inbox, push);
    }
}

/// The state of a link in the making.
enum Stage {
    /// The peer's session has been asked.
    Asked,
    Tcp(Sockets),
    /// Only errors can still come for it: sessions admit one stream for each id, and both ends
    /// want the same number of them, which is part of the settings' hash.
    Ready(Halves),
    Failed(LinkError),
    /// This rank's call has failed. But the peer may have called before it left, and its sockets
    /// may still arrive.
    Refused(LinkError, Sockets),
}

impl Mesh {
    pub(crate) fn new(owner: LinkOwner) -> Self {
        let owner = Arc::new(owner);
        let peers = (0..owner.members.len() as Rank).map(|peer| PeerLink {
            carrier: owner.carrier(peer),
            route: None,
            is_far: false,
        });
        Self {
            peers: peers.collect(),
            inbox: Arc::default(),
            forming: HashMap::new(),
            awaited: Vec::new(),
            without_rails: BTreeSet::new(),
            unbound: BTreeSet::new(),
            has_grown: false,
            owner,
        }
    }

    /// The acceptor of links that peers ask for.
    pub(crate) fn acceptor(&self) -> LinkAcceptor {
        LinkAcceptor {
            owner: Arc::clone(&self.owner),
            inbox: Arc::clone(&self.inbox),
        }
    }

    /// The link to each rank.
    pub(crate) fn peers(&self) -> &[PeerLink] {
        &self.peers
    }

    /// Whether no network is between this rank and the peer.
    pub(crate) fn shares_host(&self, peer: Rank) -> bool {
        let member = self.owner.members[peer as usize];
        self.owner.world.session.local_to(member)
    }

    /// Why there may be no link to the peer yet: connections to it that nobody answers.
    pub(crate) fn silence(&self, peer: Rank) -> Option<String> {
        let member = self.owner.members[peer as usize];
        self.owner.world.session.silence(member)
    }

    /// Asks for a link, once.
    pub(crate) fn ask(&mut self, link_id: LinkId) {
        self.look();
        if !self.forming.contains_key(&link_id) {
            let stage = self.begin(link_id, self.owner.carrier(link_id.0));
            self.forming.insert(link_id, stage);
            self.look();
        }
    }

    /// The link, if it is ready.
    ///
    /// # Errors
    /// Why there will be none.
    pub(crate) fn take(&mut self, link_id: LinkId) -> Result<Option<Halves>, LinkError> {
        self.ask(link_id);
        match self.forming.remove(&link_id) {
            Some(Stage::Ready(halves)) => Ok(Some(halves)),
            other => {
                let failure = match &other {
                    Some(Stage::Failed(error) | Stage::Refused(error, _)) => Err(error.clone()),
                    _ => Ok(None),
                };
                self.forming.extend(other.map(|stage| (link_id, stage)));
                failure
            }
        }
    }

    /// The links that can be [taken](Self::take).
    pub(crate) fn ready(&mut self) -> Vec<LinkId> {
        self.look();
        let forming = self.forming.iter();
        let ready = forming.filter(|(_, stage)| matches!(stage, Stage::Ready(_)));
        ready.map(|(&link_id, _)| link_id).collect()
    }

    /// Takes note of links that were taken.
    pub(crate) fn arm(&mut self) {
        self.awaited.retain(|(_, chime)| !chime.is_answered());
    }

    /// Whether the peer has not taken the link yet. Nothing comes over it before the peer rings
    /// this rank's bell.
    pub(crate) fn is_awaited(&self, link_id: LinkId) -> bool {
        self.awaited.iter().any(|(awaited, _)| *awaited == link_id)
    }

    /// Whether some link has made progress since this was last called. A wait that was armed
    /// earlier does not include what that link now waits for.
    pub(crate) fn has_grown(&mut self) -> bool {
        std::mem::take(&mut self.has_grown)
    }

    /// Processes the events that other threads have put into the inbox.
    fn look(&mut self) {
        for event in self.inbox.take() {
            self.has_grown = true;
            match event {
                InboxEvent::Delivery(delivery) => self.sort(delivery),
                InboxEvent::Memory(link_id, end, Ok(link)) => {
                    let halves = self.shared(link_id, end, *link);
                    self.forming.insert(link_id, Stage::Ready(halves));
                }
                InboxEvent::Memory(link_id, _, Err(error)) => self.fail(link_id, error),
                InboxEvent::Rails(link_id, outcome) => self.railed(link_id, outcome),
            }
        }
    }

    fn begin(&mut self, link_id: LinkId, carrier: Carrier) -> Stage {
        let begun = match carrier {
            Carrier::Own => return Stage::of(self.own()),
            Carrier::SharedMemory => self.owner.reach(link_id, StreamKind::SharedMemory, 0),
            Carrier::Rdma => self.owner.reach(link_id, StreamKind::Rdma, 0),
            Carrier::Tcp => {
                let sockets = Sockets::of(&self.owner, link_id.0);
                let asked = sockets.ask(&self.owner, link_id);
                return match asked {
                    Ok(()) => Stage::Tcp(sockets),
                    Err(error) => Stage::Refused(LinkError::Setup(error.to_string()), sockets),
                };
            }
        };
        begun.map_or_else(|error| Stage::failed(&error), |()| Stage::Asked)
    }

    fn own(&self) -> Result<Halves, LinkError> {
        let ((tx, _), (_, rx)) = shm::pair(self.owner.size())?;
        Ok((Box::new(tx), Box::new(rx)))
    }

    /// Continues a link after one of its sockets has come, or has failed to.
    fn sort(&mut self, delivery: inbox::Delivered) {
        let link_id = delivery.link_id;
        let socket = match delivery.stream {
            Ok(socket) => socket,
            Err(error) => return self.fail(link_id, LinkError::Setup(error.to_string())),
        };
        let (mut sockets, refused) = match self.forming.remove(&link_id) {
            Some(Stage::Tcp(sockets)) => (sockets, None),
            Some(Stage::Refused(error, sockets)) => (sockets, Some(error)),
            // Some sockets of a link that has failed are closed already.
            Some(failed @ Stage::Failed(_)) => {
                self.forming.insert(link_id, failed);
                return;
            }
            _ => (Sockets::of(&self.owner, link_id.0), None),
        };
        sockets.put(delivery.socket, socket);
        let stage = match refused {
            _ if sockets.is_complete() => Stage::of(self.connected(link_id, sockets)),
            Some(error) => Stage::Refused(error, sockets),
            None => Stage::Tcp(sockets),
        };
        self.forming.insert(link_id, stage);
    }

    /// Notes that an attempt to make a link has failed. The peer's attempt may have succeeded.
    fn fail(&mut self, link_id: LinkId, error: LinkError) {
        let stage = match self.forming.remove(&link_id) {
            Some(ready @ Stage::Ready(_)) => ready,
            Some(Stage::Tcp(sockets) | Stage::Refused(_, sockets)) => {
                Stage::Refused(error, sockets)
            }
            _ => Stage::Failed(error),
        };
        self.forming.insert(link_id, stage);
    }

    fn connected(&mut self, link_id: LinkId, sockets: Sockets) -> Result<Halves, LinkError> {
        let mut made = sockets.link(&self.owner, link_id)?;
        if !self.owner.reaches(link_id.0) {
            made.route.push_str(", passed on by other ranks");
        }
        // Once for all links to the peer.
        if let Some(unbound) = made.unbound
            && self.unbound.insert(link_id.0)
        {
            spark_ccl_log::remark(&format!(
                "TCP to {}: {unbound} may carry nothing: no connection is bound to it, and other \
                 interfaces are in its subnet; the connections are {}; spark-perf doctor says what \
                 to set",
                self.owner.describe(link_id.0),
                made.route
            ));
        }
        self.note(link_id, Carrier::Tcp, Some(made.route));
        Ok(made.halves)
    }

    fn shared(&mut self, link_id: LinkId, end: StreamEnd, link: shm::LinkEnd) -> Halves {
        if end == StreamEnd::Connector {
            self.awaited.push((link_id, shm::Chime::of(&link)));
        }
        let (mut tx, rx) = link;
        let lends = match self.owner.settings().single_copy {
            SingleCopy::Always => true,
            SingleCopy::Never => false,
            SingleCopy::Auto => shm::single_copies_pay(),
        };
        if lends {
            tx.allow_lending();
        }
        self.note(link_id, Carrier::SharedMemory, None);
        (Box::new(tx), Box::new(rx))
    }

    fn railed(&mut self, link_id: LinkId, outcome: Outcome) {
        let stage = match outcome {
            Outcome::Link(halves, route) => {
                self.note(link_id, Carrier::Rdma, Some(route));
                Stage::Ready(halves)
            }
            // Both ends know it, and either may ask for the sockets.
            Outcome::Tcp(problem) => {
                // Once for all links to the peer.
                if self.without_rails.insert(link_id.0) {
                    let name = self.owner.describe(link_id.0);
                    spark_ccl_log::warn!("TCP to {name}, not RDMA: {problem}");
                }
                match self.forming.remove(&link_id) {
                    Some(Stage::Tcp(sockets)) => Stage::Tcp(sockets),
                    Some(ready @ Stage::Ready(_)) => ready,
                    _ => self.begin(link_id, Carrier::Tcp),
                }
            }
            // The peer may believe that both ends agreed on TCP, and may have made the link over
            // TCP.
            Outcome::Failed(error) => return self.fail(link_id, error),
        };
        self.forming.insert(link_id, stage);
    }

    /// Records and logs what a link is made of.
    fn note(&mut self, (peer, lane): LinkId, carrier: Carrier, route: Option<String>) {
        let (rank, owner) = (self.owner.rank, &self.owner);
        let link = PeerLink {
            carrier,
            route,
            is_far: false,
        };
        spark_ccl_log::info!(
            "rank {rank}: link {lane} to {}: {link}",
            owner.describe(peer)
        );
        self.peers[peer as usize] = link;
    }
}

impl Stage {
    fn of(made: Result<Halves, LinkError>) -> Self {
        made.map_or_else(Self::Failed, Self::Ready)
    }

    fn failed(error: &BootstrapError) -> Self {
        Self::Failed(LinkError::Setup(error.to_string()))
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        self.owner.world.session.dismiss(self.owner.context);
    }
}
