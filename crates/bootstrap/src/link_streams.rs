//! Streams of links: one per purpose, no matter which of its two ends asks for it.
//!
//! Both ends may ask. If two ranks call each other for the same purpose, the higher rank rejects
//! the other's call; the lower one accepts the other's call and gives up its own. A rank that has
//! the stream rejects all further calls. Only the session's thread decides this, so there are no
//! races.
//!
//! The two ends of a stream may have to negotiate over it before the link is ready. The session's
//! thread does that, too ([`Talk`]), so it does not depend on the ranks' own threads.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::PollFd;
use spark_ccl_log::Mutex;
use spark_ccl_seal::Stream;

use crate::connector::Caller;
use crate::negotiation::{RETRY_PAUSE, Talk, Talks};
use crate::net::Bell;
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
    pub stream: Result<(Stream, End), Error>,
}

/// The handler of a context's streams. The session's thread calls it, and then advances the talk
/// that it returns, if any.
pub type Attendant = Arc<dyn Fn(Delivery) -> Option<Box<dyn Talk>> + Send + Sync>;

/// How many ended contexts are remembered. A program that splits a communicator at every step must
/// not grow; no stream arrives later than this.
const LONGEST_PAST: usize = 16_384;

/// The contexts that have or had an attendant, or for which streams have arrived.
#[derive(Default)]
pub(crate) struct Contexts(Mutex<Known>);

#[derive(Default)]
struct Known {
    contexts: HashMap<u64, Context>,
    /// The ended ones, oldest first.
    past: VecDeque<u64>,
}

enum Context {
    Attended(Attendant),
    /// Streams that arrived before there was an attendant.
    Early(Vec<Delivery>),
    Over,
}

impl Contexts {
    /// Passes all streams of a context to `attendant` from now on. Returns those that have already
    /// arrived.
    pub(crate) fn attend(&self, context: u64, attendant: &Attendant) -> Vec<Delivery> {
        let attended = Context::Attended(Arc::clone(attendant));
        match self.0.lock().contexts.insert(context, attended) {
            Some(Context::Early(early)) => early,
            _ => Vec::new(),
        }
    }

    /// Drops all streams of a context from now on.
    pub(crate) fn dismiss(&self, context: u64) {
        let mut known = self.0.lock();
        if let Some(Context::Over) = known.contexts.insert(context, Context::Over) {
            return;
        }
        known.past.push_back(context);
        if known.past.len() > LONGEST_PAST
            && let Some(oldest) = known.past.pop_front()
            && matches!(known.contexts.get(&oldest), Some(Context::Over))
        {
            known.contexts.remove(&oldest);
        }
    }

    pub(crate) fn is_attended(&self, context: u64) -> bool {
        let known = self.0.lock();
        matches!(known.contexts.get(&context), Some(Context::Attended(_)))
    }

    pub(crate) fn is_over(&self, context: u64) -> bool {
        let known = self.0.lock();
        matches!(known.contexts.get(&context), Some(Context::Over))
    }

    /// Passes a stream to its attendant. Returns the attendant's talk.
    pub(crate) fn deliver(&self, delivery: Delivery) -> Option<Box<dyn Talk>> {
        let mut known = self.0.lock();
        let early = || Context::Early(Vec::new());
        let context = known
            .contexts
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
        drop(known);
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
    /// What arrived before there was an attendant, to deliver now.
    early: Mutex<Vec<Delivery>>,
    /// The texts about calls that are not answered, by peer.
    silences: Mutex<HashMap<u32, String>>,
    bell: Bell,
}

impl Requests {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            calls: Mutex::default(),
            early: Mutex::default(),
            silences: Mutex::default(),
            bell: Bell::new()?,
        })
    }

    pub(crate) fn call(&self, peer: u32, purpose: Purpose, caller: Caller) {
        self.calls.lock().push((peer, purpose, caller));
        self.bell.ring();
    }

    /// The routes to a peer whose connections are not answered, in words.
    pub(crate) fn silence(&self, peer: u32) -> Option<String> {
        self.silences.lock().get(&peer).cloned()
    }

    /// Has the session's thread deliver these.
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

/// The streams of links that a session's thread makes and accepts.
pub(crate) struct LinkStreams {
    rank: u32,
    key: Secret,
    requests: Arc<Requests>,
    contexts: Arc<Contexts>,
    calls: HashMap<(u32, Purpose), Caller>,
    /// The streams that exist or existed, by their context.
    established: HashMap<u64, HashSet<(u32, Purpose)>>,
    talks: Talks,
    /// The texts already logged about routes that do not carry.
    detours: HashSet<String>,
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
            established: HashMap::new(),
            talks: Talks::default(),
            detours: HashSet::new(),
        }
    }

    /// Whether to accept a peer's call.
    pub(crate) fn admits(&self, from: u32, purpose: Purpose) -> bool {
        let id = (from, purpose);
        let calls_itself = self.rank > from && self.calls.contains_key(&id);
        !calls_itself && !self.is_established(id)
    }

    fn is_established(&self, id: (u32, Purpose)) -> bool {
        let streams = self.established.get(&id.1.context);
        streams.is_some_and(|streams| streams.contains(&id))
    }

    /// Takes the stream of an accepted call.
    pub(crate) fn accept_call(&mut self, peer: u32, purpose: Purpose, stream: Stream) {
        self.calls.remove(&(peer, purpose));
        self.finish_call(peer, purpose, Ok((stream, End::Called)));
    }

    /// Makes new calls and advances all calls and talks, without blocking.
    pub(crate) fn serve(&mut self, now: Instant) {
        self.requests.bell.silence();
        let requests = std::mem::take(&mut *self.requests.calls.lock());
        for (peer, purpose, caller) in requests {
            if !self.is_established((peer, purpose)) {
                self.calls.entry((peer, purpose)).or_insert(caller);
            }
        }
        let (mut done, mut detours) = (Vec::new(), Vec::new());
        let (key, contexts) = (&self.key, &self.contexts);
        self.calls.retain(|&(peer, purpose), caller| {
            if contexts.is_over(purpose.context) {
                return false;
            }
            let outcome = caller.step(key, now);
            let goes_on = outcome.is_none();
            done.extend(outcome.map(|outcome| (peer, purpose, outcome)));
            detours.extend(caller.detour());
            goes_on
        });
        let silent = self.calls.iter();
        let silent = silent.filter_map(|(&(peer, _), caller)| Some((peer, caller.silence(now)?)));
        *self.requests.silences.lock() = silent.collect();
        for detour in detours {
            // Logged once for all streams to the peer.
            if !self.detours.contains(&detour) {
                spark_ccl_log::remark(&format!("rank {}: {detour}", self.rank));
                self.detours.insert(detour);
            }
        }
        for (peer, purpose, outcome) in done {
            let stream = outcome.map(|entered| (entered.into_stream(), End::Caller));
            self.finish_call(peer, purpose, stream);
        }
        let early = std::mem::take(&mut *self.requests.early.lock());
        for delivery in early {
            self.deliver(delivery);
        }
        self.talks.go_on(|context| self.contexts.is_over(context));
        self.established
            .retain(|&context, _| !self.contexts.is_over(context));
    }

    fn deliver(&mut self, delivery: Delivery) {
        let (peer, context) = (delivery.peer, delivery.purpose.context);
        if let Some(talk) = self.contexts.deliver(delivery) {
            self.talks.begin(peer, context, talk);
        }
    }

    fn finish_call(&mut self, peer: u32, purpose: Purpose, stream: Result<(Stream, End), Error>) {
        if stream.is_ok() {
            let streams = self.established.entry(purpose.context).or_default();
            streams.insert((peer, purpose));
        }
        self.deliver(Delivery {
            peer,
            purpose,
            stream,
        });
    }

    /// Adds the descriptors that wake [`serve`](Self::serve).
    pub(crate) fn watch<'a>(&'a self, now: Instant, fds: &mut Vec<PollFd<'a>>) {
        let calls = self.calls.values();
        calls.for_each(|caller| caller.watch(now, fds));
        self.talks.watch(fds);
    }

    /// When [`serve`](Self::serve) is due even if no descriptor is ready.
    pub(crate) fn next_wake(&self, now: Instant) -> Option<Instant> {
        let calls = self.calls.values();
        let calls = calls.filter_map(|caller| caller.next_wake(now));
        let any_to_retry = self.talks.any_to_retry();
        calls.chain(any_to_retry.then(|| now + RETRY_PAUSE)).min()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use socket2::Socket;
    use spark_ccl_fork::Unshared;

    use super::*;
    use crate::Kind;

    fn purpose(context: u64) -> Purpose {
        Purpose {
            context,
            kind: Kind::Tcp,
            number: 0,
        }
    }

    fn streams() -> (LinkStreams, Arc<Contexts>) {
        let contexts = Arc::new(Contexts::default());
        let requests = Arc::new(Requests::new().unwrap());
        let key = Secret::from_text(b"key");
        (
            LinkStreams::new(0, key, requests, Arc::clone(&contexts)),
            contexts,
        )
    }

    #[test]
    fn contexts_that_are_over_take_no_more_memory_than_a_bound() {
        let contexts = Contexts::default();
        let last = 2 * LONGEST_PAST as u64;
        (0..=last).for_each(|context| contexts.dismiss(context));
        contexts.dismiss(last);
        let known = contexts.0.lock();
        assert_eq!(known.contexts.len(), LONGEST_PAST);
        assert_eq!(known.past.len(), LONGEST_PAST);
        drop(known);
        assert!(contexts.is_over(last));
        assert!(!contexts.is_over(0));
    }

    #[test]
    fn streams_of_a_context_that_is_over_are_forgotten() {
        let (mut streams, contexts) = streams();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        for context in [1, 2] {
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            streams.accept_call(
                1,
                purpose(context),
                Unshared::new(Socket::from(stream)).into(),
            );
        }
        contexts.dismiss(1);
        streams.serve(Instant::now());
        assert_eq!(streams.established.keys().collect::<Vec<_>>(), [&2]);
        assert!(!streams.admits(1, purpose(2)));
    }
}
