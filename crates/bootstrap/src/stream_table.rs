//! Keeps streams from other ranks until this rank asks for them. They come from the session's
//! thread, already authenticated.

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;
use std::time::Instant;

use spark_ccl_log::{Condvar, Mutex};
use spark_ccl_seal::Stream;

use crate::{Error, StreamId, StreamKind, Wiring};

/// Gets reopened streams as they arrive.
pub(crate) type Receiver = Box<dyn Fn(u32, StreamId, Stream) + Send + Sync>;

/// The streams that have arrived, and the state of the world's initialisation.
#[derive(Default)]
pub(crate) struct StreamTable {
    state: Mutex<State>,
    changed: Condvar,
    /// Takes the reopened streams of this kind, for which no thread waits here.
    renewed: OnceLock<(StreamKind, Receiver)>,
}

#[derive(Debug, Default)]
struct State {
    streams: HashMap<(u32, StreamId), Stream>,
    /// The outcome of the initialisation, once there is one.
    outcome: Option<Result<(), Error>>,
    /// Which ranks reach each other, once the rendezvous has said it.
    wiring: Option<Wiring>,
    /// How many connections never authenticated, for the error about a missing stream.
    strangers: String,
    /// Ranks that will open no more streams.
    departed: HashSet<u32>,
}

/// Why there is no stream.
pub(crate) enum Empty {
    /// It did not come in time. The text says how many connections never authenticated.
    Late(String),
    Failed(Error),
    Departed,
}

impl std::fmt::Debug for StreamTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamTable").finish_non_exhaustive()
    }
}

impl StreamTable {
    /// From now on, reopened streams of this kind go to `receiver`. Only the first call counts.
    pub(crate) fn hand_over(&self, kind: StreamKind, receiver: Receiver) {
        let _ = self.renewed.set((kind, receiver));
    }

    /// Files a stream. It replaces an untaken one of the same id.
    pub(crate) fn file(&self, from: u32, stream_id: StreamId, stream: Stream) {
        if let Some((kind, receiver)) = self.renewed.get()
            && stream_id.kind == *kind
            && stream_id.number > 0
        {
            receiver(from, stream_id, stream);
            return;
        }
        self.state.lock().streams.insert((from, stream_id), stream);
        self.changed.notify_all();
    }

    /// Records the outcome of the initialisation. Only the first one counts.
    pub(crate) fn conclude(&self, outcome: Result<(), Error>) {
        self.state.lock().outcome.get_or_insert(outcome);
        self.changed.notify_all();
    }

    /// Records which ranks reach each other, as the rendezvous tells it.
    pub(crate) fn learn(&self, wiring: Wiring) {
        self.state.lock().wiring = Some(wiring);
        self.changed.notify_all();
    }

    /// Waits until it is known which ranks reach each other; `None` at the deadline.
    pub(crate) fn wiring(&self, deadline: Instant) -> Option<Result<Wiring, Error>> {
        let state = self.state.lock();
        let is_open = |state: &mut State| state.wiring.is_none() && state.outcome.is_none();
        let state = self.changed.wait_while_until(state, is_open, deadline);
        match &state.outcome {
            Some(Err(error)) => Some(Err(error.clone())),
            _ => state.wiring.clone().map(Ok),
        }
    }

    /// Records the text about connections that never authenticated.
    pub(crate) fn note_strangers(&self, text: String) {
        self.state.lock().strangers = text;
    }

    /// Records that a rank will open no more streams.
    pub(crate) fn depart(&self, rank: u32) {
        self.state.lock().departed.insert(rank);
        self.changed.notify_all();
    }

    /// Why the initialisation failed, if it has.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.state.lock().outcome.clone().and_then(Result::err)
    }

    /// Takes a stream. Waits for it until the deadline, or until the initialisation fails.
    pub(crate) fn take(
        &self,
        from: u32,
        stream_id: StreamId,
        deadline: Instant,
    ) -> Result<Stream, Empty> {
        let stream = (from, stream_id);
        let is_open = |state: &mut State| {
            let has_failed = matches!(state.outcome, Some(Err(_)));
            let is_there = state.streams.contains_key(&stream);
            !is_there && !has_failed && !state.departed.contains(&from)
        };
        let state = self.state.lock();
        let mut state = self.changed.wait_while_until(state, is_open, deadline);
        if let Some(stream) = state.streams.remove(&stream) {
            return Ok(stream);
        }
        Err(match &state.outcome {
            Some(Err(error)) => Empty::Failed(error.clone()),
            _ if state.departed.contains(&from) => Empty::Departed,
            _ => Empty::Late(state.strangers.clone()),
        })
    }

    /// Waits for the outcome of the initialisation; `None` at the deadline.
    pub(crate) fn outcome(&self, deadline: Instant) -> Option<Result<(), Error>> {
        let is_open = |state: &mut State| state.outcome.is_none();
        let state = self.state.lock();
        let state = self.changed.wait_while_until(state, is_open, deadline);
        state.outcome.clone()
    }
}
