//! Deliveries of other threads to the engine. They put them here, and wake the engine, which makes
//! links from them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use socket2::Socket;
use spark_ccl_bootstrap::{Error, StreamEnd};
use spark_ccl_fork::Unshared;
use spark_ccl_log::Mutex;
use spark_ccl_transport::{LinkError, shm};

use super::{Halves, LinkId, LinkOwner};

/// The deliveries that have not been taken.
#[derive(Default)]
pub(super) struct Inbox {
    events: Mutex<Vec<InboxEvent>>,
    /// Release in [`Inbox::put`] pairs with Acquire in [`Inbox::take`]: a thread that sees it set
    /// finds the event. Cleared relaxed, under the lock of the events, as it is set.
    is_filled: AtomicBool,
}

pub(super) enum InboxEvent {
    /// A socket of a link over TCP, or why there is no stream of a link.
    Delivery(Delivered),
    /// A link through shared memory, called for by this end or the other.
    Memory(LinkId, StreamEnd, Result<Box<shm::LinkEnd>, LinkError>),
    /// A thread has tried to make a link of rails.
    Rails(LinkId, Outcome),
}

/// The outcome of a dialogue about rails.
pub(super) enum Outcome {
    /// The link, and its route.
    Link(Halves, String),
    /// Both ends know that there are no rails, for this reason, and TCP will do instead.
    Tcp(String),
    Failed(LinkError),
}

/// A stream of a link, by ranks of the communicator.
pub(super) struct Delivered {
    pub(super) link_id: LinkId,
    /// Which of the link's sockets it is.
    pub(super) socket: usize,
    pub(super) stream: Result<Unshared<Socket>, Error>,
}

impl Inbox {
    pub(super) fn put(&self, event: InboxEvent) {
        let mut events = self.events.lock();
        events.push(event);
        self.is_filled.store(true, Ordering::Release);
    }

    pub(super) fn take(&self) -> Vec<InboxEvent> {
        if !self.is_filled.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut events = self.events.lock();
        self.is_filled.store(false, Ordering::Relaxed);
        std::mem::take(&mut events)
    }
}

/// Advances the engine's operations in flight, if the engine still exists.
pub(crate) type Push = Arc<dyn Fn() + Send + Sync>;

/// Has the engine take its deliveries. So operations that lacked a link send even if no thread
/// waits for them.
pub(super) fn wake_engine(owner: &LinkOwner, push: &Push) {
    owner.bell.ring();
    // Ranks of one process call this while they hold their own engines, so pushing another one
    // could deadlock.
    if !owner.world.session.is_local() {
        push();
    }
}
