//! Streams of links: of each there is one, whichever of its two ends asks for it.
//!
//! Both may. A rank that is calling another turns that one's call for the same purpose down, if its own number
//! is the higher one, and else takes it and gives its own call up. A rank that has the stream turns all further
//! calls down. Only the session's thread decides, so nothing comes in between.
//!
//! Over a stream its two ends may have to come to terms before the link is there. The session's thread does that,
//! too ([`Talk`]): what their ranks do meanwhile is of no account.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use rustix::event::PollFd;
use socket2::Socket;

use crate::caller::Caller;
use crate::net::Bell;
use crate::talk::{RETRY_PAUSE, Talk, Talks};
use crate::{Error, Purpose, Secret};

/// Which end of a stream this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// This rank has called.
    Caller,
    /// The peer has.
    Called,
}

/// What came of reaching for a peer, or of a peer's reaching for this rank.
#[derive(Debug)]
pub struct Delivery {
    /// The peer.
    pub peer: u32,
    /// What the stream is for.
    pub purpose: Purpose,
    /// The stream, or why there is none.
    pub stream: Result<(Socket, End), Error>,
}

/// Who is told of a context's streams, on the session's thread. That goes on with the talk that it answers, if any.
pub type Attendant = Arc<dyn Fn(Delivery) -> Option<Box<dyn Talk>> + Send + Sync>;

/// The contexts whose streams someone waits for, or has waited for.
#[derive(Default)]
pub(crate) struct Contexts(Mutex<HashMap<u64, Context>>);

enum Context {
    Attended(Attendant),
    /// What has come before anyone attends.
    Early(Vec<Delivery>),
    Over,
}

impl Contexts {
    /// Tells `attendant` of all that comes for a context from now on; what has come before.
    pub(crate) fn attend(&self, context: u64, attendant: &Attendant) -> Vec<Delivery> {
        let attended = Context::Attended(Arc::clone(attendant));
        match self.0.lock().insert(context, attended) {
            Some(Context::Early(early)) => early,
            _ => Vec::new(),
        }
    }

    /// Drops what comes for a context from now on.
    pub(crate) fn dismiss(&self, context: u64) {
        self.0.lock().insert(context, Context::Over);
    }

    pub(crate) fn is_over(&self, context: u64) -> bool {
        matches!(self.0.lock().get(&context), Some(Context::Over))
    }

    /// Hands a stream on; what its attendant has to say over it.
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

/// What a session's thread is asked for.
pub(crate) struct Requests {
    calls: Mutex<Vec<(u32, Purpose, Caller)>>,
    /// What came before someone attended to it.
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

    /// Has what is here delivered by the session's thread.
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

/// The calls that a session's thread makes.
pub(crate) struct LinkStreams {
    rank: u32,
    key: Secret,
    requests: Arc<Requests>,
    contexts: Arc<Contexts>,
    calls: HashMap<(u32, Purpose), Caller>,
    /// The streams that there are, or were.
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

    /// Whether a peer's call is to be answered.
    pub(crate) fn admits(&self, from: u32, purpose: Purpose) -> bool {
        let id = (from, purpose);
        let calls_itself = self.rank > from && self.calls.contains_key(&id);
        !calls_itself && !self.established.contains(&id)
    }

    /// Takes the stream of a peer that was admitted.
    pub(crate) fn accept_call(&mut self, peer: u32, purpose: Purpose, stream: Socket) {
        self.calls.remove(&(peer, purpose));
        self.finish_call(peer, purpose, Ok((stream, End::Called)));
    }

    /// Does what can be done now.
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
        let context = delivery.purpose.context;
        if let Some(talk) = self.contexts.deliver(delivery) {
            self.talks.begin(context, talk);
        }
    }

    fn finish_call(&mut self, peer: u32, purpose: Purpose, stream: Result<(Socket, End), Error>) {
        if stream.is_ok() {
            self.established.insert((peer, purpose));
        }
        self.deliver(Delivery {
            peer,
            purpose,
            stream,
        });
    }

    /// Adds what wakes [`serve`](Self::serve).
    pub(crate) fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        self.calls.values().for_each(|caller| caller.watch(fds));
        self.talks.watch(fds);
    }

    /// When it has something to do even if no descriptor wakes it.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        let calls = self.calls.values().filter_map(Caller::next_wake);
        let any_to_retry = self.talks.any_to_retry();
        calls
            .chain(any_to_retry.then(|| Instant::now() + RETRY_PAUSE))
            .min()
    }
}
