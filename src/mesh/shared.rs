//! Links through shared memory. The end that has called for one makes it, and can use it at once.
//!
//! The sessions' threads make them. The peer's session thread takes a link as soon as it is passed.
//! So descriptors are in flight only briefly, since the kernel limits their number for a user; and
//! operations that the peer has started go out.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use socket2::Socket;
use spark_ccl_bootstrap::{NegotiationTurn, StreamEnd};
use spark_ccl_fork::Unshared;
use spark_ccl_log::Mutex;
use spark_ccl_sched::Rank;
use spark_ccl_transport::memory::MemoryError;
use spark_ccl_transport::{Bell, LinkError, shm};

use super::inbox::{Inbox, InboxEvent, Push, wake_engine};
use super::{LinkId, LinkOwner};

/// The peers' bells: one each, however many links there are.
#[derive(Default)]
pub(super) struct Bells(Mutex<HashMap<Rank, Arc<Bell>>>);

impl Bells {
    fn keep(&self, peer: Rank, bell: Arc<Bell>) -> Arc<Bell> {
        Arc::clone(self.0.lock().entry(peer).or_insert(bell))
    }
}

/// Makes a link between the two ends of a stream: the connector passes its bell and the link, and
/// the other end its bell.
pub(super) struct SharedNegotiation {
    pub(super) owner: Arc<LinkOwner>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) push: Push,
    pub(super) bells: Arc<Bells>,
    pub(super) link_id: LinkId,
    pub(super) stream: Unshared<Socket>,
    pub(super) end: StreamEnd,
    /// Until when a connector waits for the kernel to let it pass descriptors. The other end can do
    /// without.
    pub(super) deadline: Instant,
    pub(super) progress: Progress,
}

/// The state of a negotiation.
#[derive(Default)]
pub(super) struct Progress {
    has_passed_bell: bool,
    /// The chime of the link, once this end has made or taken it.
    chime: Option<shm::Chime>,
    bell: Option<Arc<Bell>>,
}

impl spark_ccl_bootstrap::Negotiation for SharedNegotiation {
    fn stream(&self) -> &Socket {
        &self.stream
    }

    fn go_on(&mut self) -> NegotiationTurn {
        match self.step() {
            Ok(()) => NegotiationTurn::Over,
            Err(MemoryError::TimedOut { .. }) => NegotiationTurn::Reading,
            Err(error) if error.may_pass() && !self.is_overdue() => NegotiationTurn::Later,
            // The peer is gone, or has no use for the link: others find out what that means.
            Err(_) if self.progress.chime.is_some() => NegotiationTurn::Over,
            Err(MemoryError::Closed { .. }) => {
                self.tell(Err(LinkError::Closed));
                NegotiationTurn::Over
            }
            Err(error) => {
                self.tell(Err(sharing(&self.owner, self.link_id.0, &error)));
                NegotiationTurn::Over
            }
        }
    }
}

impl SharedNegotiation {
    /// Advances the negotiation, to its end or until it has to wait.
    fn step(&mut self) -> Result<(), MemoryError> {
        let passed = self.pass();
        // Even if the kernel currently lets nothing be passed: it counts descriptors that were
        // passed and not taken. If all ranks only tried to pass, none would take, and this would
        // not end.
        let taken = self.take();
        match (passed, taken) {
            (Err(error), Ok(()) | Err(MemoryError::TimedOut { .. })) => Err(error),
            (_, taken) => taken,
        }
    }

    /// Passes this rank's bell, and a connector's link.
    fn pass(&mut self) -> Result<(), MemoryError> {
        let now = Instant::now();
        if !self.progress.has_passed_bell {
            match shm::send_bell(&self.stream, &self.owner.bell, now) {
                // A connector that is gone may have passed the link before, and sent messages over
                // it.
                Err(MemoryError::Closed { .. }) if self.end != StreamEnd::Connector => {}
                passed => passed?,
            }
            self.progress.has_passed_bell = true;
        }
        if self.end == StreamEnd::Connector && self.progress.chime.is_none() {
            let end = shm::offer(&self.stream, self.owner.size(), now)?;
            self.progress.chime = Some(shm::Chime::of(&end));
            self.tell(Ok(end));
        }
        Ok(())
    }

    /// Takes the peer's bell, and the link of a peer that has called.
    fn take(&mut self) -> Result<(), MemoryError> {
        let now = Instant::now();
        let bell = match &self.progress.bell {
            Some(bell) => Arc::clone(bell),
            None => self
                .bells
                .keep(self.link_id.0, shm::take_bell(&self.stream, now)?),
        };
        self.progress.bell = Some(Arc::clone(&bell));
        if let Some(chime) = &self.progress.chime {
            chime.set(&bell);
        } else if self.end == StreamEnd::Listener {
            let end = shm::accept(&self.stream, self.owner.size(), now)?;
            let chime = shm::Chime::of(&end);
            chime.set(&bell);
            self.progress.chime = Some(chime);
            // The peer may be asleep; only from now on can it rely on being woken up.
            bell.ring();
            self.tell(Ok(end));
        }
        Ok(())
    }

    fn is_overdue(&self) -> bool {
        self.end == StreamEnd::Connector && Instant::now() >= self.deadline
    }

    fn tell(&self, made: Result<shm::LinkEnd, LinkError>) {
        self.inbox.put(InboxEvent::Memory(
            self.link_id,
            self.end,
            made.map(Box::new),
        ));
        wake_engine(&self.owner, &self.push);
    }
}

fn sharing(owner: &LinkOwner, peer: Rank, error: &MemoryError) -> LinkError {
    LinkError::Setup(format!(
        "sharing memory with {}: {error}; SPARK_CCL_SHM=0 uses TCP instead",
        owner.describe(peer)
    ))
}
