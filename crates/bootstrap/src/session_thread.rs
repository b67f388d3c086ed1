//! A session's thread. Authenticates and accepts the streams of other ranks, makes the calls for
//! links, and waits for the rendezvous' verdict until the world is sealed.

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
use crate::incoming::{Admitted, Lobby};
use crate::init_result::{MAX_VERDICT, Verdict};
use crate::link_streams::{LinkStreams, Requests};
use crate::net;
use crate::relay::{Draining, Relays};
use crate::search::Post;
use crate::stop::Stop;
use crate::stream_table::Mailbox;
use crate::wire::FrameKind;
use crate::{Error, Purpose, Wiring};

/// How long to pause if the system refuses to wait.
const PAUSE: Duration = Duration::from_millis(50);
/// How long this rank keeps its verdict while it still passes on those of others.
const LAST_VERDICTS: Duration = Duration::from_secs(2);

pub(crate) struct Acceptor {
    pub(crate) lobby: Lobby,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) stop: Arc<Stop>,
    pub(crate) rendezvous: Rendezvous,
    pub(crate) requests: Arc<Requests>,
    pub(crate) link_streams: LinkStreams,
    pub(crate) relays: Relays,
    pub(crate) draining: Arc<Draining>,
    /// Passes connections on to the rendezvous, until that is over.
    pub(crate) post: Option<Post>,
    /// The routes to a rank, for connections that this one passes on to it.
    pub(crate) routes: Box<dyn Fn(u32) -> Vec<Route> + Send>,
    /// The verdict, and the latest time to pass it on.
    pub(crate) verdict: Option<(Result<(), Error>, Instant)>,
}

/// The connection to the rendezvous, after the table has arrived.
pub(crate) struct Rendezvous {
    /// `None` once the verdict has arrived.
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
    Verdict(Result<(), Error>),
}

impl Acceptor {
    pub(crate) fn run(mut self) {
        loop {
            if let Err(error) = self.sleep() {
                // Most likely out of memory, or of descriptors. What is due is done all the same;
                // the pause keeps the thread from spinning.
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
                Some(Heard::Wiring(wiring)) => self.mailbox.learn(wiring),
                Some(Heard::Verdict(outcome)) => {
                    self.verdict = Some((outcome, Instant::now() + LAST_VERDICTS));
                }
                None => {}
            }
            self.conclude(Instant::now());
        }
    }

    /// Closes the listeners. Passes on the bytes that are still on their way to others.
    fn end(self) {
        let Acceptor {
            relays, draining, ..
        } = self;
        relays.drain();
        draining.note(false);
    }

    /// Passes the verdict on to this rank, whose process may then end. So ranks whose connections
    /// are passed on here get theirs first.
    fn conclude(&mut self, now: Instant) {
        if let Some(post) = &mut self.post {
            post.serve(now);
        }
        let is_idle = self.post.as_ref().is_none_or(Post::is_idle);
        if let Some((outcome, _)) = self.verdict.take_if(|(_, until)| is_idle || *until <= now) {
            self.mailbox.conclude(outcome);
            self.post = None;
        }
    }

    /// Accepts the streams of ranks that have authenticated themselves.
    fn answer(&mut self) {
        let link_streams = &self.link_streams;
        // Calls accepted in this round: `link_streams` learns of them only when the lobby is done.
        let accepted = RefCell::new(HashSet::new());
        let admits = |from, purpose: Purpose| {
            !purpose.kind.is_link()
                || link_streams.admits(from, purpose)
                    && accepted.borrow_mut().insert((from, purpose))
        };
        let unproved = self.lobby.refused().unproved.count;
        let connections = self.lobby.serve(Instant::now(), &admits);
        if self.lobby.refused().unproved.count > unproved {
            self.mailbox
                .note_strangers(self.lobby.refused().unproved_text());
        }
        for connection in connections {
            match connection {
                Admitted::Stream {
                    from,
                    purpose,
                    stream,
                } => {
                    spark_ccl_log::debug!("stream accepted from {from}: {purpose:?}");
                    if purpose.kind.is_link() {
                        self.link_streams.accept_call(from, purpose, stream);
                    } else {
                        self.mailbox.file(from, purpose, stream);
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
        self.lobby.watch(&mut fds);
        let now = Instant::now();
        self.link_streams.watch(now, &mut fds);
        self.relays.watch(&mut fds);
        if let Some(post) = &self.post {
            post.watch(&mut fds);
        }
        let wakes = [
            self.lobby.next_wake(),
            self.link_streams.next_wake(now),
            self.relays.next_wake(),
            self.post.as_ref().and_then(Post::next_wake),
            self.verdict.as_ref().map(|(_, until)| *until),
        ];
        net::poll(&mut fds, wakes.into_iter().flatten().min())
    }
}

impl Rendezvous {
    /// The reader continues with the stream.
    pub(crate) fn new(
        stream: Arc<Unshared<Socket>>,
        reader: FrameReader,
        name: String,
        size: u32,
    ) -> Self {
        Rendezvous {
            stream: Some(stream),
            reader,
            name,
            size,
        }
    }

    /// The next message of the rendezvous, if it has arrived.
    fn listen(&mut self) -> Option<Heard> {
        let stream = self.stream.as_deref()?;
        let outcome = match self.reader.poll(stream, MAX_VERDICT) {
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
        // Tells the rendezvous that its verdict has arrived. Dropping the socket would not: the
        // session shares it.
        let _ = stream.shutdown(Shutdown::Both);
        self.stream = None;
        Some(Heard::Verdict(outcome))
    }
}

/// The error that a [`FrameKind::Failed`] frame carries.
pub(crate) fn failed(body: &[u8], name: &str) -> Error {
    Verdict::decode(body).map_or_else(
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
