//! What other threads leave for the engine that makes links.

use super::rails::{self, Outcome};
use super::shared::{Bells, Progress, Talk};
use super::{Line, Site};
use crate::call::or_abort;
use crate::engine::{CHANNELS, Shared};
use parking_lot::Mutex;
use socket2::Socket;
use spark_ccl_bootstrap::{self as bootstrap, Attendant, Delivery, End, Error, Kind};
use spark_ccl_sched::Rank;
use spark_ccl_transport::{LinkError, shm};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

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

/// A stream of a link, by ranks of the communicator.
pub(super) struct Delivered {
    peer: Rank,
    pub(super) lane: u32,
    pub(super) stream: Result<Socket, Error>,
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

/// Has the session put what comes for the communicator into the inbox.
pub(super) fn attend(site: &Arc<Site>, inbox: &Arc<Inbox>, engine: Weak<Shared>) {
    let session = &site.world.session;
    let context = site.context;
    let (site, inbox) = (Arc::clone(site), Arc::clone(inbox));
    let bells = Arc::<Bells>::default();
    let attendant = move |delivery: Delivery| -> Option<Box<dyn bootstrap::Talk>> {
        let mut members = site.members.iter();
        let peer = members.position(|&member| member == delivery.peer)? as Rank;
        let lane = delivery.purpose.lane;
        let line = (peer, lane as usize % CHANNELS);
        let stream = match (delivery.purpose.kind, delivery.stream) {
            (Kind::SharedMemory, Ok((stream, end))) => {
                return Some(Box::new(Talk {
                    site: Arc::clone(&site),
                    inbox: Arc::clone(&inbox),
                    engine: Weak::clone(&engine),
                    bells: Arc::clone(&bells),
                    line,
                    stream,
                    end,
                    progress: Progress::default(),
                }));
            }
            (Kind::Rdma, Ok((stream, _))) => {
                rails::make(&site, &inbox, line, stream, &engine);
                return None;
            }
            (_, stream) => stream.map(|(stream, _)| stream),
        };
        inbox.put(Note::Delivery(Delivered { peer, lane, stream }));
        announce(&site, &engine);
        None
    };
    let attendant: Attendant = Arc::new(attendant);
    session.attend(context, &attendant);
}

/// Has the engine look: what its operations could not send for lack of a link goes out without their callers.
pub(super) fn announce(site: &Site, engine: &Weak<Shared>) {
    site.bell.ring();
    // Ranks of one process tell each other while they work on their own engines.
    if !site.world.session.is_local()
        && let Some(engine) = engine.upgrade()
    {
        or_abort(|| engine.push());
    }
}
