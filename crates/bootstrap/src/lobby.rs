//! Where connections wait until they have proven themselves.
//!
//! One thread serves all of them; none can make it wait. Their number is bounded, each has a
//! deadline, and a crowd of strangers delays a rank by at most [`GRACE`] per [`CAPACITY`] of them.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use socket2::Socket;

use crate::frame::{Frame, FrameReader, ReadError};
use crate::handshake::{self, Intent, MAX_HANDSHAKE, Open, OpenError, Rejection};
use crate::hello::{Hello, MAX_HELLO};
use crate::net;
use crate::secret::random;
use crate::wire::{FrameKind, WireError, frame};
use crate::{Purpose, Secret};

/// The most connections that wait at a time; further ones stay in the kernel's backlog.
const CAPACITY: usize = 64;
/// How long a connection may take to prove itself.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a connection has before it may be thrown out for the next one.
const GRACE: Duration = Duration::from_millis(250);

/// Who is expected.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Door {
    /// Ranks that want to meet the others.
    Rendezvous,
    /// The other ranks' streams.
    Streams { rank: u32, size: u32 },
}

/// A connection that has proven itself.
pub(crate) enum Guest {
    /// A rank at the rendezvous.
    Rank { hello: Box<Hello>, stream: Socket },
    /// A stream from another rank.
    Stream {
        from: u32,
        purpose: Purpose,
        stream: Socket,
    },
}

/// Listeners, and the connections that have not proven themselves yet, the oldest first.
pub(crate) struct Lobby {
    door: Door,
    key: Secret,
    listeners: Vec<Socket>,
    visitors: VecDeque<Visitor>,
    /// No connections are accepted before.
    closed_until: Option<Instant>,
    refused: Refused,
}

/// What was turned away, for the error of a rank that misses others.
#[derive(Default)]
pub(crate) struct Refused {
    pub(crate) secret: Tally,
    pub(crate) version: Tally,
}

/// How often something happened, and where it came from last.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) count: u64,
    pub(crate) last: String,
}

impl Tally {
    fn add(&mut self, last: String) {
        self.count += 1;
        self.last = last;
    }
}

impl Lobby {
    /// Non-blocking `listeners` behind which holders of `key` are let in.
    pub(crate) fn new(door: Door, key: Secret, listeners: Vec<Socket>) -> Self {
        let visitors = VecDeque::new();
        Lobby {
            door,
            key,
            listeners,
            visitors,
            closed_until: None,
            refused: Refused::default(),
        }
    }

    /// Adds what wakes [`Lobby::serve`].
    pub(crate) fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        let listeners = if self.closed_until.is_none() {
            &self.listeners[..]
        } else {
            &[]
        };
        let sockets = listeners
            .iter()
            .chain(self.visitors.iter().map(|visitor| &visitor.socket));
        fds.extend(sockets.map(|socket| PollFd::new(socket, PollFlags::IN)));
    }

    /// When [`Lobby::serve`] has something to do even if no descriptor wakes it.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        let eldest = self
            .visitors
            .front()
            .map(|visitor| visitor.since + PATIENCE);
        [eldest, self.closed_until].into_iter().flatten().min()
    }

    /// What was turned away so far.
    pub(crate) fn refused(&self) -> &Refused {
        &self.refused
    }

    /// Does what can be done now, and returns who has proven itself.
    pub(crate) fn serve(&mut self, now: Instant) -> Vec<Guest> {
        if self.closed_until.is_some_and(|until| until <= now) {
            self.closed_until = None;
        }
        self.admit_visitors(now);
        let mut guests = Vec::new();
        for mut visitor in std::mem::take(&mut self.visitors) {
            match visitor.step(self.door, &self.key) {
                Ok(Step::Done(guest)) => guests.push(visitor.into_guest(guest)),
                Ok(Step::Wait) if visitor.since + PATIENCE > now => {
                    self.visitors.push_back(visitor);
                }
                Ok(Step::Wait) => {
                    tracing::debug!(from = visitor.name(), "no handshake in time, closed");
                }
                Err(error) => self.turn_away(&visitor, &error),
            }
        }
        guests
    }

    fn admit_visitors(&mut self, now: Instant) {
        for listener in 0..self.listeners.len() {
            while self.closed_until.is_none() && self.make_room(now) {
                match self.listeners[listener].accept() {
                    Ok((socket, _)) => self.visitors.push_back(Visitor::new(socket, now)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // The connection may be gone again, which concerns nobody.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => {
                        // Most likely no descriptor is free. Let go of one and do not spin.
                        tracing::warn!(%error, "cannot accept a connection");
                        self.visitors.pop_front();
                        self.closed_until = Some(now + GRACE);
                    }
                }
            }
        }
    }

    /// Whether one more visitor fits, if need be in the place of the oldest.
    fn make_room(&mut self, now: Instant) -> bool {
        if self.visitors.len() < CAPACITY {
            return true;
        }
        match self.visitors.front().map(|visitor| visitor.since + GRACE) {
            Some(protected_until) if protected_until > now => {
                self.closed_until = Some(protected_until);
                false
            }
            _ => {
                self.visitors.pop_front();
                true
            }
        }
    }

    fn turn_away(&mut self, visitor: &Visitor, error: &VisitError) {
        let from = visitor.name();
        let rejection = match error {
            VisitError::Read(_) => None,
            VisitError::Open(OpenError::Version(theirs)) => {
                self.refused
                    .version
                    .add(format!("{from}, version {theirs}"));
                Some(Rejection::Version)
            }
            VisitError::Secret => {
                self.refused.secret.add(from.clone());
                Some(Rejection::Secret)
            }
            VisitError::Misdirected => Some(Rejection::Misdirected),
            VisitError::Open(OpenError::Wire(_)) | VisitError::Wire(_) => {
                Some(Rejection::Malformed)
            }
        };
        match error {
            VisitError::Secret | VisitError::Open(OpenError::Version(_)) => {
                tracing::warn!(from, %error, "connection refused");
            }
            _ => tracing::debug!(from, %error, "connection refused"),
        }
        if let Some(rejection) = rejection {
            // It fits into the empty buffer of a fresh connection; a stranger may miss it.
            let _ = net::try_write(&visitor.socket, &rejection.frame());
        }
    }
}

struct Visitor {
    socket: Socket,
    since: Instant,
    reader: FrameReader,
    stage: Stage,
}

enum Stage {
    Opening,
    Proving {
        transcript: Vec<u8>,
        intent: Intent,
    },
    /// Authenticated; its hello comes next.
    Greeting,
}

enum Step {
    Wait,
    Done(Outcome),
}

enum Outcome {
    Rank(Box<Hello>),
    Stream { from: u32, purpose: Purpose },
}

#[derive(Debug, thiserror::Error)]
enum VisitError {
    #[error("{0}")]
    Read(#[from] ReadError),
    #[error("it opened with {0}")]
    Open(#[from] OpenError),
    #[error("it sent {0}")]
    Wire(#[from] WireError),
    #[error("it has a different secret")]
    Secret,
    #[error("it looks for another rank or another kind of listener")]
    Misdirected,
}

impl Visitor {
    fn new(socket: Socket, now: Instant) -> Self {
        // Fails on a Unix socket, where there is no delay to switch off.
        let _ = socket.set_tcp_nodelay(true);
        Visitor {
            socket,
            since: now,
            reader: FrameReader::default(),
            stage: Stage::Opening,
        }
    }

    fn name(&self) -> String {
        match self
            .socket
            .peer_addr()
            .ok()
            .and_then(|address| address.as_socket())
        {
            Some(address) => address.to_string(),
            None => "a process of this host".to_owned(),
        }
    }

    fn into_guest(self, outcome: Outcome) -> Guest {
        let stream = self.socket;
        match outcome {
            Outcome::Rank(hello) => Guest::Rank { hello, stream },
            Outcome::Stream { from, purpose } => Guest::Stream {
                from,
                purpose,
                stream,
            },
        }
    }

    /// Goes as far as the bytes that have arrived allow.
    fn step(&mut self, door: Door, key: &Secret) -> Result<Step, VisitError> {
        loop {
            let limit = match self.stage {
                Stage::Greeting => MAX_HELLO,
                _ => MAX_HANDSHAKE,
            };
            let Some((kind, body)) = self.reader.poll(&self.socket, limit)? else {
                return Ok(Step::Wait);
            };
            if let Some(outcome) = self.advance(door, key, (kind, body))? {
                return Ok(Step::Done(outcome));
            }
        }
    }

    fn advance(
        &mut self,
        door: Door,
        key: &Secret,
        (kind, body): Frame,
    ) -> Result<Option<Outcome>, VisitError> {
        match (&self.stage, kind) {
            (Stage::Opening, FrameKind::Open) => {
                let intent = Open::decode(&body)?.intent;
                door.check(intent)?;
                let nonce = random().map_err(|error| io::Error::other(error.to_string()));
                let challenge = handshake::challenge(&nonce.map_err(ReadError::Io)?);
                self.send(FrameKind::Challenge, &challenge)?;
                let transcript = handshake::transcript(&body, &challenge);
                self.stage = Stage::Proving { transcript, intent };
                Ok(None)
            }
            (Stage::Proving { transcript, intent }, FrameKind::Proof) => {
                let proof = body.as_slice().try_into().map_err(|_| VisitError::Secret)?;
                if !key.verify(handshake::CLIENT, transcript, proof) {
                    return Err(VisitError::Secret);
                }
                let intent = *intent;
                self.send(FrameKind::Accept, &key.sign(handshake::SERVER, transcript))?;
                self.stage = Stage::Greeting;
                match intent {
                    Intent::Rendezvous => Ok(None),
                    Intent::Stream { from, purpose, .. } => {
                        Ok(Some(Outcome::Stream { from, purpose }))
                    }
                }
            }
            (Stage::Greeting, FrameKind::Hello) => {
                Ok(Some(Outcome::Rank(Box::new(Hello::decode(&body)?))))
            }
            (_, seen) => Err(WireError::Unexpected {
                expected: "handshake",
                seen,
            }
            .into()),
        }
    }

    /// Sends a short frame, which a connection that keeps to the protocol always has room for.
    fn send(&self, kind: FrameKind, body: &[u8]) -> Result<(), ReadError> {
        let bytes = frame(kind, body);
        match net::try_write(&self.socket, &bytes)? {
            Some(count) if count == bytes.len() => Ok(()),
            _ => Err(ReadError::Io(io::ErrorKind::WriteZero.into())),
        }
    }
}

impl Door {
    fn check(self, intent: Intent) -> Result<(), VisitError> {
        let welcome = match (self, intent) {
            (Door::Rendezvous, Intent::Rendezvous) => true,
            (Door::Streams { rank, size }, Intent::Stream { from, to, .. }) => {
                to == rank && from < size
            }
            _ => false,
        };
        if welcome {
            Ok(())
        } else {
            Err(VisitError::Misdirected)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::dial::{Call, Route, call};
    use crate::handshake::{EnterError, PROTOCOL, enter};
    use crate::options::Address;
    use crate::{Error, Kind};

    const KEY: &[u8] = b"the key";

    /// Rank 1 of 2 serves streams in the background until it has let one in or time is up.
    fn serve() -> (Route, std::thread::JoinHandle<Option<u32>>) {
        let listener = net::listen_tcp(Address::LOOPBACK.with_port(0)).unwrap();
        let target = listener.local_addr().unwrap().as_socket().unwrap();
        let door = Door::Streams { rank: 1, size: 2 };
        let mut lobby = Lobby::new(door, Secret::from_text(KEY), vec![listener]);
        let deadline = Instant::now() + Duration::from_secs(30);
        let served = std::thread::spawn(move || {
            while Instant::now() < deadline && lobby.refused.secret.count == 0 {
                let mut fds = Vec::new();
                lobby.watch(&mut fds);
                net::poll(&mut fds, Some(Instant::now() + Duration::from_millis(50))).unwrap();
                drop(fds);
                if let Some(Guest::Stream { from, .. }) = lobby.serve(Instant::now()).pop() {
                    return Some(from);
                }
            }
            None
        });
        (
            Route::Tcp {
                source: None,
                target,
            },
            served,
        )
    }

    fn stream_to(to: u32) -> Intent {
        let purpose = Purpose {
            context: 1,
            kind: Kind::Tcp,
            lane: 0,
        };
        Intent::Stream {
            from: 0,
            to,
            purpose,
        }
    }

    fn connect(route: &Route, key: &[u8], intent: Intent) -> Result<Socket, Error> {
        call(&Call {
            peer: "rank 1",
            routes: std::slice::from_ref(route),
            key: &Secret::from_text(key),
            intent,
            deadline: Instant::now() + Duration::from_secs(30),
            refusal: Duration::ZERO,
            interrupt: &|| None,
        })
    }

    #[test]
    fn only_the_right_key_opens_a_stream() {
        let (route, served) = serve();
        let error = connect(&route, b"another key", stream_to(1)).unwrap_err();
        assert_eq!(
            error,
            Error::Auth {
                peer: "rank 1".to_owned()
            }
        );
        assert_eq!(served.join().unwrap(), None);

        let (route, served) = serve();
        connect(&route, KEY, stream_to(1)).unwrap();
        assert_eq!(served.join().unwrap(), Some(0));
    }

    #[test]
    fn a_stream_for_another_rank_or_listener_is_refused() {
        let (route, served) = serve();
        for intent in [stream_to(0), Intent::Rendezvous] {
            let error = connect(&route, KEY, intent).unwrap_err();
            assert!(matches!(error, Error::Protocol { .. }), "{error}");
        }
        connect(&route, KEY, stream_to(1)).unwrap();
        assert_eq!(served.join().unwrap(), Some(0));
    }

    #[test]
    fn another_protocol_version_is_named_with_ours() {
        let (route, served) = serve();
        let Route::Tcp { target, .. } = route else {
            panic!("not a TCP route")
        };
        let deadline = Instant::now() + Duration::from_secs(30);
        let socket = net::connect_tcp(None, target, deadline).unwrap();
        let mut open = Open::new(stream_to(1)).unwrap();
        open.version = PROTOCOL + 1;
        let result = enter(&socket, &Secret::from_text(KEY), &open, "rank 1", deadline);
        let Err(EnterError::Final(error)) = result else {
            panic!("it was let in")
        };
        assert!(
            matches!(
                error,
                Error::Version {
                    theirs: PROTOCOL,
                    ..
                }
            ),
            "{error}"
        );
        connect(&route, KEY, stream_to(1)).unwrap();
        assert_eq!(served.join().unwrap(), Some(0));
    }

    #[test]
    fn a_server_without_the_key_is_found_out() {
        let (near, far) = net::tcp_pair().unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        let server = std::thread::spawn(move || {
            let mut reader = FrameReader::default();
            let mut read = || reader.read(&far, MAX_HANDSHAKE, deadline).unwrap();
            read();
            let challenge = frame(FrameKind::Challenge, &handshake::challenge(&[0; 32]));
            net::write_all(&far, &challenge, deadline).unwrap();
            // It sends back what it heard, which is a proof for the other role.
            let (_, proof) = read();
            net::write_all(&far, &frame(FrameKind::Accept, &proof), deadline).unwrap();
            far
        });
        let open = Open::new(stream_to(1)).unwrap();
        let result = enter(&near, &Secret::from_text(KEY), &open, "rank 1", deadline);
        assert!(matches!(result, Err(EnterError::Final(Error::Auth { .. }))));
        server.join().unwrap();
    }

    /// Frames as a stranger may send them: of any kind, some of them almost right.
    fn strange_frames() -> impl Strategy<Value = Vec<u8>> {
        let open = Open {
            version: PROTOCOL,
            intent: stream_to(1),
            nonce: [3; 32],
        };
        let open = open.encode();
        let almost = (any::<prop::sample::Index>(), any::<u8>()).prop_map({
            let open = open.clone();
            move |(at, with)| {
                let mut body = open.clone();
                let at = at.index(body.len());
                body[at] = with;
                frame(FrameKind::Open, &body)
            }
        });
        let kind = prop::sample::select(vec![
            FrameKind::Open,
            FrameKind::Proof,
            FrameKind::Accept,
            FrameKind::Hello,
        ]);
        let any_body = prop::collection::vec(any::<u8>(), 0..MAX_HANDSHAKE);
        let frames = prop_oneof![
            Just(frame(FrameKind::Open, &open)),
            almost,
            (kind, any_body).prop_map(|(kind, body)| frame(kind, &body)),
            prop::collection::vec(any::<u8>(), 1..40),
        ];
        prop::collection::vec(frames, 1..5).prop_map(|frames| frames.concat())
    }

    proptest! {
        #[test]
        fn no_stranger_gets_in_whatever_it_says(bytes in strange_frames()) {
            let (mut stranger, ours) = net::tcp_pair().unwrap();
            ours.set_nonblocking(true).unwrap();
            std::io::Write::write_all(&mut stranger, &bytes).unwrap();
            let mut visitor = Visitor::new(ours, Instant::now());
            let door = Door::Streams { rank: 1, size: 2 };
            let step = visitor.step(door, &Secret::from_text(KEY));
            prop_assert!(!matches!(step, Ok(Step::Done(_))));
        }
    }
}
