//! A session's thread. Authenticates and accepts the streams of other ranks, makes the dials for
//! links, and waits for the rendezvous' result until the world is sealed.

use std::cell::RefCell;
use std::collections::HashSet;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use socket2::Socket;
use spark_ccl_fork::Unshared;

use crate::dial::Route;
use crate::frame::{FrameReader, ReadError};
use crate::incoming::{Admitted, Incoming};
use crate::init_result::{InitFailure, MAX_INIT_RESULT};
use crate::link_streams::{LinkStreams, Requests};
use crate::net;
use crate::relay::{Draining, Relays};
use crate::search::Responder;
use crate::stop::Stop;
use crate::stream_table::StreamTable;
use crate::wire::FrameKind;
use crate::{Error, StreamId, Wiring};

/// How long to pause if the system refuses to wait.
const PAUSE: Duration = Duration::from_millis(50);
/// How long this rank keeps its result while it still passes on those of others.
const LAST_RESULTS: Duration = Duration::from_secs(2);

pub(crate) struct SessionThread {
    pub(crate) incoming: Incoming,
    pub(crate) stream_table: Arc<StreamTable>,
    pub(crate) stop: Arc<Stop>,
    pub(crate) rendezvous: RendezvousStream,
    pub(crate) requests: Arc<Requests>,
    pub(crate) link_streams: LinkStreams,
    pub(crate) relays: Relays,
    pub(crate) draining: Arc<Draining>,
    /// Passes connections on to the rendezvous, until that is over.
    pub(crate) responder: Option<Responder>,
    /// The routes to a rank, for connections that this one passes on to it.
    pub(crate) routes: Box<dyn Fn(u32) -> Vec<Route> + Send>,
    /// The result, and the latest time to pass it on.
    pub(crate) init_result: Option<(Result<(), Error>, Instant)>,
}

/// The connection to the rendezvous, after the table has arrived.
pub(crate) struct RendezvousStream {
    /// `None` once the result has arrived.
    stream: Option<Arc<Unshared<Socket>>>,
    reader: FrameReader,
    /// For errors.
    name: String,
    /// The number of ranks.
    size: u32,
}

/// A message of the rendezvous.
enum Heard {
    Wiring(Wiring),
    /// The last one.
    InitFailure(Result<(), Error>),
}

impl SessionThread {
    pub(crate) fn run(mut self) {
        loop {
            if let Err(error) = self.sleep() {
                // Most likely out of memory, or of descriptors. Work that is due is done all the
                // same; the pause keeps the thread from spinning.
                spark_ccl_log::warn!("the session cannot wait for its connections: {error}");
                std::thread::sleep(PAUSE);
            }
            if self.stop.stopped() {
                return self.end();
            }
            self.answer();
            self.link_streams.serve(Instant::now());
            self.relays.serve(Instant::now());
            self.draining.note(!self.relays.is_idle());
            match self.rendezvous.listen() {
                Some(Heard::Wiring(wiring)) => self.stream_table.learn(wiring),
                Some(Heard::InitFailure(outcome)) => {
                    self.init_result = Some((outcome, Instant::now() + LAST_RESULTS));
                }
                None => {}
            }
            self.conclude(Instant::now());
        }
    }

    /// Closes the listeners. Passes on the bytes that are still on their way to others.
    fn end(self) {
        let SessionThread {
            relays, draining, ..
        } = self;
        relays.drain();
        draining.note(false);
    }

    /// Passes the result on to this rank, whose process may then end. So ranks whose connections
    /// are passed on here get theirs first.
    fn conclude(&mut self, now: Instant) {
        if let Some(responder) = &mut self.responder {
            responder.serve(now);
        }
        let is_idle = self.responder.as_ref().is_none_or(Responder::is_idle);
        if let Some((outcome, _)) = self
            .init_result
            .take_if(|(_, until)| is_idle || *until <= now)
        {
            self.stream_table.conclude(outcome);
            self.responder = None;
        }
    }

    /// Accepts the streams of ranks that have authenticated themselves.
    fn answer(&mut self) {
        let link_streams = &self.link_streams;
        // Dials accepted in this round: `link_streams` learns of them only when `incoming` is done.
        let accepted = RefCell::new(HashSet::new());
        let admits = |from, stream_id: StreamId| {
            !stream_id.kind.is_link()
                || link_streams.admits(from, stream_id)
                    && accepted.borrow_mut().insert((from, stream_id))
        };
        let unproved = self.incoming.refused().unproved.count;
        let connections = self.incoming.serve(Instant::now(), &admits);
        if self.incoming.refused().unproved.count > unproved {
            self.stream_table
                .note_strangers(self.incoming.refused().unproved_text());
        }
        for connection in connections {
            match connection {
                Admitted::Stream {
                    from,
                    stream_id,
                    stream,
                } => {
                    spark_ccl_log::debug!("stream accepted from {from}: {stream_id:?}");
                    if stream_id.kind.is_link() {
                        self.link_streams.accept_dial(from, stream_id, stream);
                    } else {
                        self.stream_table.file(from, stream_id, stream);
                    }
                }
                Admitted::Relay { next, near } => {
                    spark_ccl_log::debug!("passes a connection on to rank {next}");
                    self.relays
                        .begin(near, &(self.routes)(next), Instant::now());
                }
                Admitted::Rank { .. } | Admitted::Onward { .. } => {}
            }
        }
    }

    fn sleep(&self) -> std::io::Result<()> {
        let bells = [self.stop.bell(), self.requests.bell()];
        let mut fds: Vec<_> = bells
            .iter()
            .map(|bell| PollFd::from_borrowed_fd(bell.as_fd(), PollFlags::IN))
            .collect();
        fds.extend(
            self.rendezvous
                .stream
                .as_deref()
                .map(|s| PollFd::new(s, PollFlags::IN)),
        );
        self.incoming.watch(&mut fds);
        let now = Instant::now();
        self.link_streams.watch(now, &mut fds);
        self.relays.watch(&mut fds);
        if let Some(responder) = &self.responder {
            responder.watch(&mut fds);
        }
        let wakes = [
            self.incoming.next_wake(),
            self.link_streams.next_wake(now),
            self.relays.next_wake(),
            self.responder.as_ref().and_then(Responder::next_wake),
            self.init_result.as_ref().map(|(_, until)| *until),
        ];
        net::poll(&mut fds, wakes.into_iter().flatten().min())
    }
}

impl RendezvousStream {
    /// The reader continues with the stream.
    pub(crate) fn new(
        stream: Arc<Unshared<Socket>>,
        reader: FrameReader,
        name: String,
        size: u32,
    ) -> Self {
        RendezvousStream {
            stream: Some(stream),
            reader,
            name,
            size,
        }
    }

    /// The next message of the rendezvous, if it has arrived.
    fn listen(&mut self) -> Option<Heard> {
        let stream = self.stream.as_deref()?;
        let outcome = match self.reader.poll(stream, MAX_INIT_RESULT) {
            Ok(None) => return None,
            Ok(Some((FrameKind::Wiring, body))) => {
                match Wiring::decode(&body, self.size as usize) {
                    Ok(wiring) => return Some(Heard::Wiring(wiring)),
                    Err(error) => Err(Error::Protocol {
                        peer: self.name.clone(),
                        reason: format!("it sent {error}"),
                    }),
                }
            }
            Ok(Some((FrameKind::Sealed, _))) => Ok(()),
            Ok(Some((FrameKind::Failed, body))) => Err(failed(&body, &self.name)),
            Ok(Some((seen, _))) => Err(Error::Protocol {
                peer: self.name.clone(),
                reason: format!("it sent a {seen:?} frame after the table"),
            }),
            Err(error) => Err(lost(&self.name, &error)),
        };
        // Tells the rendezvous that its result has arrived. Dropping the socket would not: the
        // session shares it.
        let _ = stream.shutdown(Shutdown::Both);
        self.stream = None;
        Some(Heard::InitFailure(outcome))
    }
}

/// The error that a [`FrameKind::Failed`] frame carries.
pub(crate) fn failed(body: &[u8], name: &str) -> Error {
    InitFailure::decode(body).map_or_else(
        |error| Error::Protocol {
            peer: name.to_owned(),
            reason: format!("it sent {error}"),
        },
        Error::from,
    )
}

/// The error if the rendezvous has gone away, or its messages were altered.
pub(crate) fn lost(name: &str, error: &ReadError) -> Error {
    if let ReadError::Changed(error) = *error {
        let peer = name.to_owned();
        return Error::Changed { peer, error };
    }
    Error::Lost(format!(
        "{name} went away before all ranks were connected ({error}); look at what the process \
         there printed last"
    ))
}

#[cfg(test)]
mod tests;
