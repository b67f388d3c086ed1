//! Streams of links: there is one per purpose, whichever of its two ends asks for it.
//!
//! Both ends may ask. If two ranks call each other for the same purpose, the higher rank rejects the other's call; the
//! lower one accepts the other's call and gives up its own. A rank that has the stream rejects all further calls. Only
//! the session's thread decides this, so there are no races.
//!
//! The two ends of a stream may have to negotiate over it before the link is ready. The session's thread does that,
//! too ([`Talk`]), so it does not depend on what the ranks' own threads are doing.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use rustix::event::PollFd;
use socket2::Socket;
use spark_ccl_fork::Unshared;

use crate::caller::Caller;
use crate::net::Bell;
use crate::talk::{RETRY_PAUSE, Talk, Talks};
use crate::{Error, Purpose, Secret};

/// Which end of a stream this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// This rank opened the stream.
    Caller,
    /// The peer opened it.
    Called,
}

/// The outcome of a call to a peer, or a peer's call to this rank.
#[derive(Debug)]
pub struct Delivery {
    /// The peer.
    pub peer: u32,
    /// What the stream is for.
    pub purpose: Purpose,
    /// The stream, or why there is none.
    pub stream: Result<(Unshared<Socket>, End), Error>,
}

/// The handler of a context's streams. The session's thread calls it, and then leads the talk that it returns, if any.
pub type Attendant = Arc<dyn Fn(Delivery) -> Option<Box<dyn Talk>> + Send + Sync>;

/// The contexts that have or had an attendant, or for which streams have arrived.
#[derive(Default)]
pub(crate) struct Contexts(Mutex<HashMap<u64, Context>>);

enum Context {
    Attended(Attendant),
    /// What has arrived before there is an attendant.
    Early(Vec<Delivery>),
    Over,
}

impl Contexts {
    /// Passes all streams of a context to `attendant` from now on. Returns those that have arrived before.
    pub(crate) fn attend(&self, context: u64, attendant: &Attendant) -> Vec<Delivery> {
        let attended = Context::Attended(Arc::clone(attendant));
        match self.0.lock().insert(context, attended) {
            Some(Context::Early(early)) => early,
            _ => Vec::new(),
        }
    }

    /// Drops all streams of a context from now on.
    pub(crate) fn dismiss(&self, context: u64) {
        self.0.lock().insert(context, Context::Over);
    }

    pub(crate) fn is_attended(&self, context: u64) -> bool {
        matches!(self.0.lock().get(&context), Some(Context::Attended(_)))
    }

    pub(crate) fn is_over(&self, context: u64) -> bool {
        matches!(self.0.lock().get(&context), Some(Context::Over))
    }

    /// Passes a stream to its attendant. Returns the attendant's talk.
    pub(crate) fn deliver(&self, delivery: Delivery) -> Option<Box<dyn Talk>> {
        let mut contexts = self.0.lock();
        let early = || Context::Early(Vec::new());
        let context = contexts
            .entry(delivery.purpose.context)
            .or_insert_with(early);
        let attendant = match context {
            Context::Attended(attendant) => Arc::clone(attendant),
            Context::Early(before) => {
                before.push(delivery);
                return None;
            }
            Context::Over => return None,
        };
        drop(contexts);
        attendant(delivery)
    }
}

impl std::fmt::Debug for Contexts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Contexts").finish_non_exhaustive()
    }
}

/// Requests to a session's thread.
pub(crate) struct Requests {
    calls: Mutex<Vec<(u32, Purpose, Caller)>>,
    /// What arrived before there was an attendant, and is to be delivered now.
    early: Mutex<Vec<Delivery>>,
    bell: Bell,
}

impl Requests {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            calls: Mutex::default(),
            early: Mutex::default(),
            bell: Bell::new()?,
        })
    }

    pub(crate) fn call(&self, peer: u32, purpose: Purpose, caller: Caller) {
        self.calls.lock().push((peer, purpose, caller));
        self.bell.ring();
    }

    /// Lets the session's thread deliver these.
    pub(crate) fn deliver(&self, early: Vec<Delivery>) {
        self.early.lock().extend(early);
        self.bell.ring();
    }

    pub(crate) fn bell(&self) -> &Bell {
        &self.bell
    }
}

impl std::fmt::Debug for Requests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Requests").finish_non_exhaustive()
    }
}

/// The streams of links, as a session's thread makes and accepts them.
pub(crate) struct LinkStreams {
    rank: u32,
    key: Secret,
    requests: Arc<Requests>,
    contexts: Arc<Contexts>,
    calls: HashMap<(u32, Purpose), Caller>,
    /// The streams that exist or existed.
    established: HashSet<(u32, Purpose)>,
    talks: Talks,
}

impl LinkStreams {
    pub(crate) fn new(
        rank: u32,
        key: Secret,
        requests: Arc<Requests>,
        contexts: Arc<Contexts>,
    ) -> Self {
        Self {
            rank,
            key,
            requests,
            contexts,
            calls: HashMap::new(),
            established: HashSet::new(),
            talks: Talks::default(),
        }
    }

    /// Whether to accept a peer's call.
    pub(crate) fn admits(&self, from: u32, purpose: Purpose) -> bool {
        let id = (from, purpose);
        let calls_itself = self.rank > from && self.calls.contains_key(&id);
        !calls_itself && !self.established.contains(&id)
    }

    /// Takes the stream of a peer's call that was accepted.
    pub(crate) fn accept_call(&mut self, peer: u32, purpose: Purpose, stream: Unshared<Socket>) {
        self.calls.remove(&(peer, purpose));
        self.finish_call(peer, purpose, Ok((stream, End::Called)));
    }

    /// Makes new calls and advances all calls and talks, without blocking.
    pub(crate) fn serve(&mut self, now: Instant) {
        self.requests.bell.silence();
        let requests = std::mem::take(&mut *self.requests.calls.lock());
        for (peer, purpose, caller) in requests {
            if !self.established.contains(&(peer, purpose)) {
                self.calls.entry((peer, purpose)).or_insert(caller);
            }
        }
        let mut done = Vec::new();
        let (key, contexts) = (&self.key, &self.contexts);
        self.calls.retain(|&(peer, purpose), caller| {
            if contexts.is_over(purpose.context) {
                return false;
            }
            let outcome = caller.step(key, now);
            let goes_on = outcome.is_none();
            done.extend(outcome.map(|outcome| (peer, purpose, outcome)));
            goes_on
        });
        for (peer, purpose, outcome) in done {
            let stream = outcome.map(|stream| (stream, End::Caller));
            self.finish_call(peer, purpose, stream);
        }
        let early = std::mem::take(&mut *self.requests.early.lock());
        for delivery in early {
            self.deliver(delivery);
        }
        self.talks.go_on(|context| self.contexts.is_over(context));
    }

    fn deliver(&mut self, delivery: Delivery) {
        let (peer, context) = (delivery.peer, delivery.purpose.context);
        if let Some(talk) = self.contexts.deliver(delivery) {
            self.talks.begin(peer, context, talk);
        }
    }

    fn finish_call(
        &mut self,
        peer: u32,
        purpose: Purpose,
        stream: Result<(Unshared<Socket>, End), Error>,
    ) {
        if stream.is_ok() {
            self.established.insert((peer, purpose));
        }
        self.deliver(Delivery {
            peer,
            purpose,
            stream,
        });
    }

    /// Adds the descriptors that wake [`serve`](Self::serve).
    pub(crate) fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        self.calls.values().for_each(|caller| caller.watch(fds));
        self.talks.watch(fds);
    }

    /// When [`serve`](Self::serve) is due even if no descriptor is ready.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        let calls = self.calls.values().filter_map(Caller::next_wake);
        let any_to_retry = self.talks.any_to_retry();
        calls
            .chain(any_to_retry.then(|| Instant::now() + RETRY_PAUSE))
            .min()
    }
}
