//! Streams of links: one per id, no matter which of its two ends asks for it.
//!
//! Both ends may ask. If two ranks dial each other for the same id, the higher rank rejects
//! the other's dial; the lower one accepts the other's dial and gives up its own. A rank that has
//! the stream rejects all further dials. Only the session's thread decides this, so there are no
//! races.
//!
//! The two ends of a stream may have to negotiate over it before the link is ready. The session's
//! thread does that, too ([`Negotiation`]), so it does not depend on the ranks' own threads.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::PollFd;
use spark_ccl_log::Mutex;
use spark_ccl_seal::Stream;

use crate::connector::Connector;
use crate::negotiation::{Negotiation, Negotiations, RETRY_PAUSE};
use crate::net::Bell;
use crate::{Error, Secret, StreamId};

/// Which end of a stream this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEnd {
    /// This rank opened the stream.
    Connector,
    /// The peer opened it.
    Listener,
}

/// The outcome of a dial to a peer, or a peer's dial to this rank.
#[derive(Debug)]
pub struct Delivery {
    /// The peer.
    pub peer: u32,
    /// The purpose of the stream.
    pub stream_id: StreamId,
    /// The stream, or why there is none.
    pub stream: Result<(Stream, StreamEnd), Error>,
}

/// The handler of a context's streams. The session's thread calls it, and then advances the
/// negotiation that it returns, if any.
pub type StreamHandler = Arc<dyn Fn(Delivery) -> Option<Box<dyn Negotiation>> + Send + Sync>;

/// The number of ended contexts that are remembered. A program that splits a communicator at every
/// step must not grow; no stream arrives later than this.
const LONGEST_PAST: usize = 16_384;

/// The contexts that have or had a handler, or for which streams have arrived.
#[derive(Default)]
pub(crate) struct Contexts(Mutex<Known>);

#[derive(Default)]
struct Known {
    contexts: HashMap<u64, Context>,
    /// The ended ones, oldest first.
    past: VecDeque<u64>,
}

enum Context {
    Handled(StreamHandler),
    /// Streams that arrived before there was a handler.
    Early(Vec<Delivery>),
    Over,
}

impl Contexts {
    /// Passes all streams of a context to `handler` from now on. Returns the streams that have
    /// already arrived.
    pub(crate) fn handle_streams(&self, context: u64, handler: &StreamHandler) -> Vec<Delivery> {
        let handled = Context::Handled(Arc::clone(handler));
        match self.0.lock().contexts.insert(context, handled) {
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

    pub(crate) fn is_handled(&self, context: u64) -> bool {
        let known = self.0.lock();
        matches!(known.contexts.get(&context), Some(Context::Handled(_)))
    }

    pub(crate) fn is_over(&self, context: u64) -> bool {
        let known = self.0.lock();
        matches!(known.contexts.get(&context), Some(Context::Over))
    }

    /// Passes a stream to its handler. Returns the handler's negotiation.
    pub(crate) fn deliver(&self, delivery: Delivery) -> Option<Box<dyn Negotiation>> {
        let mut known = self.0.lock();
        let early = || Context::Early(Vec::new());
        let context = known
            .contexts
            .entry(delivery.stream_id.context)
            .or_insert_with(early);
        let handler = match context {
            Context::Handled(handler) => Arc::clone(handler),
            Context::Early(before) => {
                before.push(delivery);
                return None;
            }
            Context::Over => return None,
        };
        drop(known);
        handler(delivery)
    }
}

impl std::fmt::Debug for Contexts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Contexts").finish_non_exhaustive()
    }
}

/// Requests to a session's thread.
pub(crate) struct Requests {
    dials: Mutex<Vec<(u32, StreamId, Connector)>>,
    /// Deliveries that arrived before there was a handler, to deliver now.
    early: Mutex<Vec<Delivery>>,
    /// The texts about dials that are not answered, by peer.
    silences: Mutex<HashMap<u32, String>>,
    bell: Bell,
}

impl Requests {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            dials: Mutex::default(),
            early: Mutex::default(),
            silences: Mutex::default(),
            bell: Bell::new()?,
        })
    }

    pub(crate) fn dial(&self, peer: u32, stream_id: StreamId, connector: Connector) {
        self.dials.lock().push((peer, stream_id, connector));
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
    dials: HashMap<(u32, StreamId), Connector>,
    /// The streams that exist or existed, by their context.
    established: HashMap<u64, HashSet<(u32, StreamId)>>,
    negotiations: Negotiations,
    /// The texts already logged about routes that do not carry.
    unchosen_routes: HashSet<String>,
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
            dials: HashMap::new(),
            established: HashMap::new(),
            negotiations: Negotiations::default(),
            unchosen_routes: HashSet::new(),
        }
    }

    /// Whether to accept a peer's dial.
    pub(crate) fn admits(&self, from: u32, stream_id: StreamId) -> bool {
        let id = (from, stream_id);
        let dials_itself = self.rank > from && self.dials.contains_key(&id);
        !dials_itself && !self.is_established(id)
    }

    fn is_established(&self, id: (u32, StreamId)) -> bool {
        let streams = self.established.get(&id.1.context);
        streams.is_some_and(|streams| streams.contains(&id))
    }

    /// Takes the stream of an accepted dial.
    pub(crate) fn accept_dial(&mut self, peer: u32, stream_id: StreamId, stream: Stream) {
        self.dials.remove(&(peer, stream_id));
        self.finish_dial(peer, stream_id, Ok((stream, StreamEnd::Listener)));
    }

    /// Makes new dials and advances all dials and negotiations, without blocking.
    pub(crate) fn serve(&mut self, now: Instant) {
        self.requests.bell.silence();
        let requests = std::mem::take(&mut *self.requests.dials.lock());
        for (peer, stream_id, connector) in requests {
            if !self.is_established((peer, stream_id)) {
                self.dials.entry((peer, stream_id)).or_insert(connector);
            }
        }
        let (mut done, mut unchosen_routes) = (Vec::new(), Vec::new());
        let (key, contexts) = (&self.key, &self.contexts);
        self.dials.retain(|&(peer, stream_id), connector| {
            if contexts.is_over(stream_id.context) {
                return false;
            }
            let outcome = connector.step(key, now);
            let goes_on = outcome.is_none();
            done.extend(outcome.map(|outcome| (peer, stream_id, outcome)));
            unchosen_routes.extend(connector.unchosen_route());
            goes_on
        });
        let silent = self.dials.iter();
        let silent =
            silent.filter_map(|(&(peer, _), connector)| Some((peer, connector.silence(now)?)));
        *self.requests.silences.lock() = silent.collect();
        for unchosen_route in unchosen_routes {
            // Logged once for all streams to the peer.
            if !self.unchosen_routes.contains(&unchosen_route) {
                spark_ccl_log::remark(&format!("rank {}: {unchosen_route}", self.rank));
                self.unchosen_routes.insert(unchosen_route);
            }
        }
        for (peer, stream_id, outcome) in done {
            let stream = outcome.map(|entered| (entered.into_stream(), StreamEnd::Connector));
            self.finish_dial(peer, stream_id, stream);
        }
        let early = std::mem::take(&mut *self.requests.early.lock());
        for delivery in early {
            self.deliver(delivery);
        }
        self.negotiations
            .go_on(|context| self.contexts.is_over(context));
        self.established
            .retain(|&context, _| !self.contexts.is_over(context));
    }

    fn deliver(&mut self, delivery: Delivery) {
        let (peer, context) = (delivery.peer, delivery.stream_id.context);
        if let Some(negotiation) = self.contexts.deliver(delivery) {
            self.negotiations.begin(peer, context, negotiation);
        }
    }

    fn finish_dial(
        &mut self,
        peer: u32,
        stream_id: StreamId,
        stream: Result<(Stream, StreamEnd), Error>,
    ) {
        if stream.is_ok() {
            let streams = self.established.entry(stream_id.context).or_default();
            streams.insert((peer, stream_id));
        }
        self.deliver(Delivery {
            peer,
            stream_id,
            stream,
        });
    }

    /// Adds the descriptors that wake [`serve`](Self::serve).
    pub(crate) fn watch<'a>(&'a self, now: Instant, fds: &mut Vec<PollFd<'a>>) {
        let dials = self.dials.values();
        dials.for_each(|connector| connector.watch(now, fds));
        self.negotiations.watch(fds);
    }

    /// When [`serve`](Self::serve) is due even if no descriptor is ready.
    pub(crate) fn next_wake(&self, now: Instant) -> Option<Instant> {
        let dials = self.dials.values();
        let dials = dials.filter_map(|connector| connector.next_wake(now));
        let any_to_retry = self.negotiations.any_to_retry();
        dials.chain(any_to_retry.then(|| now + RETRY_PAUSE)).min()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use socket2::Socket;
    use spark_ccl_fork::Unshared;

    use super::*;
    use crate::StreamKind;

    fn stream_id(context: u64) -> StreamId {
        StreamId {
            context,
            kind: StreamKind::Tcp,
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
            streams.accept_dial(
                1,
                stream_id(context),
                Unshared::new(Socket::from(stream)).into(),
            );
        }
        contexts.dismiss(1);
        streams.serve(Instant::now());
        assert_eq!(streams.established.keys().collect::<Vec<_>>(), [&2]);
        assert!(!streams.admits(1, stream_id(2)));
    }
}
