//! What other threads leave for the engine that makes links.

use super::{CHANNELS, Halves, Line, Site};
use parking_lot::Mutex;
use socket2::Socket;
use spark_ccl_bootstrap::{End, Error};
use spark_ccl_fork::Unshared;
use spark_ccl_sched::Rank;
use spark_ccl_transport::{LinkError, shm};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What has come, and nobody has looked at.
#[derive(Default)]
pub(super) struct Inbox {
    notes: Mutex<Vec<Note>>,
    /// Release in [`Inbox::put`], Acquire in [`Inbox::take`]: who sees that there is something finds it.
    is_filled: AtomicBool,
}

pub(super) enum Note {
    /// A socket of a link over TCP, or why there is no stream of a link.
    Delivery(Delivered),
    /// The link through shared memory for which this end, or the other, has called.
    Memory(Line, End, Result<shm::End, LinkError>),
    /// A thread has tried to make a link of rails.
    Rails(Line, Outcome),
}

/// What came of a dialogue about rails.
pub(super) enum Outcome {
    Link(Halves, String),
    /// Both ends know that there are no rails, for this reason, and TCP will do instead.
    Tcp(String),
    Failed(LinkError),
}

/// A stream of a link, by ranks of the communicator.
pub(super) struct Delivered {
    pub(super) peer: Rank,
    pub(super) lane: u32,
    pub(super) stream: Result<Unshared<Socket>, Error>,
}

impl Delivered {
    pub(super) fn line(&self) -> Line {
        (self.peer, self.lane as usize % CHANNELS)
    }
}

impl Inbox {
    pub(super) fn put(&self, note: Note) {
        let mut notes = self.notes.lock();
        notes.push(note);
        self.is_filled.store(true, Ordering::Release);
    }

    pub(super) fn take(&self) -> Vec<Note> {
        if !self.is_filled.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut notes = self.notes.lock();
        self.is_filled.store(false, Ordering::Relaxed);
        std::mem::take(&mut notes)
    }
}

/// Moves on what the engine has in flight, if it is still there.
pub(crate) type Push = Arc<dyn Fn() + Send + Sync>;

/// Has the engine look: what its operations could not send for lack of a link goes out without their callers.
pub(super) fn announce(site: &Site, push: &Push) {
    site.bell.ring();
    // Ranks of one process tell each other while they work on their own engines.
    if !site.world.session.is_local() {
        push();
    }
}
