//! An incoming connection that is not authenticated yet: the server's side of the handshake.

use std::io;
use std::time::Instant;

use socket2::Socket;
use spark_ccl_fork::Unshared;
use spark_ccl_seal::{Sealer, Seals};

use super::eviction::Origin;
use super::{Admits, Admitted, ListenerRole};
use crate::frame::{Frame, FrameReader, ReadError};
use crate::handshake::{self, Entered, Intent, MAX_HANDSHAKE, Open, OpenError, WorldName};
use crate::hello::{Hello, MAX_HELLO};
use crate::keys::Keys;
use crate::net;
use crate::owner::{self, NotOwn};
use crate::secret::random;
use crate::wire::{FrameKind, WireError, frame};
use crate::{Secret, StreamId};

pub(super) struct PendingConnection {
    pub(super) socket: Unshared<Socket>,
    pub(super) origin: Origin,
    pub(super) since: Instant,
    reader: FrameReader,
    stage: Stage,
}

enum Stage {
    Opening,
    Proving {
        transcript: Vec<u8>,
        intent: Intent,
        world: WorldName,
        key: Secret,
    },
    /// Authenticated. The hello is next; the reader opens it.
    Greeting(WorldName, Sealer),
}

pub(super) enum Step {
    Wait,
    Done(Outcome),
}

pub(super) enum Outcome {
    Rank(WorldName, Box<Hello>, Sealer),
    Stream {
        from: u32,
        stream_id: StreamId,
        seals: Seals,
    },
    Relay {
        next: u32,
    },
    Onward,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("{0}")]
    Read(#[from] ReadError),
    #[error("it opened with {0}")]
    Open(#[from] OpenError),
    #[error("it sent {0}")]
    Wire(#[from] WireError),
    /// From a rank that already expects sealed answers: an open one would look changed to it.
    #[error("instead of a hello, it sent {0}")]
    Hello(WireError),
    #[error("it has a different secret")]
    Secret,
    #[error("{0}; set SPARK_CCL_SECRET on all ranks to admit other users")]
    Owner(#[from] NotOwn),
    #[error("this rank has the stream, or calls for it itself")]
    Crossed,
    #[error("it looks for another rank or another kind of listener")]
    Misdirected,
    #[error("it looks for a world that is not here, or no longer")]
    Over,
}

impl PendingConnection {
    pub(super) fn new(socket: Socket, origin: Origin, now: Instant) -> Self {
        // Fails on a Unix socket, which delays nothing.
        let _ = socket.set_tcp_nodelay(true);
        PendingConnection {
            socket: Unshared::new(socket),
            origin,
            since: now,
            reader: FrameReader::default(),
            stage: Stage::Opening,
        }
    }

    /// Whether it has sent no message yet.
    pub(super) fn is_silent(&self) -> bool {
        matches!(self.stage, Stage::Opening)
    }

    /// Whether it has proved that it holds the secret.
    pub(super) fn is_authenticated(&self) -> bool {
        matches!(self.stage, Stage::Greeting(..))
    }

    pub(super) fn name(&self) -> String {
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

    pub(super) fn into_admitted(self, outcome: Outcome) -> Admitted {
        let (socket, reader) = (self.socket, self.reader);
        match outcome {
            Outcome::Rank(world, hello, sealer) => Admitted::Rank {
                world,
                hello,
                stream: socket,
                reader,
                sealer,
            },
            Outcome::Stream {
                from,
                stream_id,
                seals,
            } => Admitted::Stream {
                from,
                stream_id,
                stream: Entered { socket, seals }.into_stream(),
            },
            Outcome::Relay { next } => Admitted::Relay { next, near: socket },
            Outcome::Onward => Admitted::Onward { near: socket },
        }
    }

    /// Advances as far as the bytes that have arrived allow.
    pub(super) fn step(
        &mut self,
        role: ListenerRole,
        keys: &Keys,
        admits: Admits<'_>,
    ) -> Result<Step, HandshakeError> {
        loop {
            let limit = match self.stage {
                Stage::Greeting(..) => MAX_HELLO,
                _ => MAX_HANDSHAKE,
            };
            let Some((kind, body)) = self.reader.poll(&self.socket, limit)? else {
                return Ok(Step::Wait);
            };
            if let Some(outcome) = self.advance(role, keys, admits, (kind, body))? {
                return Ok(Step::Done(outcome));
            }
        }
    }

    fn advance(
        &mut self,
        role: ListenerRole,
        keys: &Keys,
        admits: Admits<'_>,
        (kind, body): Frame,
    ) -> Result<Option<Outcome>, HandshakeError> {
        // An error ends the connection at any stage.
        match (std::mem::replace(&mut self.stage, Stage::Opening), kind) {
            (Stage::Opening, FrameKind::Open) => {
                self.stage = self.challenge(role, keys, &body)?;
                Ok(None)
            }
            (
                Stage::Proving {
                    transcript,
                    intent,
                    world,
                    key,
                },
                FrameKind::Proof,
            ) => {
                let proof = body
                    .as_slice()
                    .try_into()
                    .map_err(|_| HandshakeError::Secret)?;
                if !key.verify(handshake::CLIENT, &transcript, proof) {
                    return Err(HandshakeError::Secret);
                }
                if let Intent::Stream {
                    from, stream_id, ..
                } = intent
                    && !admits(from, stream_id)
                {
                    return Err(HandshakeError::Crossed);
                }
                let proof = key.sign(handshake::SERVER, &transcript);
                self.send(FrameKind::Accept, &proof)?;
                let seals = handshake::seals(&key, &transcript, handshake::SERVER);
                Ok(self.accepted(intent, world, seals))
            }
            (Stage::Greeting(world, sealer), FrameKind::Hello) => {
                let hello = Hello::decode(&body).map_err(HandshakeError::Hello)?;
                Ok(Some(Outcome::Rank(world, Box::new(hello), sealer)))
            }
            (Stage::Greeting(..), seen) => Err(HandshakeError::Hello(WireError::Unexpected {
                expected: "hello",
                seen,
            })),
            (_, seen) => Err(WireError::Unexpected {
                expected: "handshake",
                seen,
            }
            .into()),
        }
    }

    /// Answers the first message. The connection owes the proof from then on.
    fn challenge(
        &self,
        role: ListenerRole,
        keys: &Keys,
        open: &[u8],
    ) -> Result<Stage, HandshakeError> {
        let intent = Open::decode(open)?.intent;
        role.check(intent)?;
        let (world, key) = keys.of(intent).ok_or(HandshakeError::Over)?;
        if key.is_public() {
            owner::check(&self.socket)?;
        }
        let nonce = random().map_err(|error| io::Error::other(error.to_string()));
        let challenge = handshake::challenge(&nonce.map_err(ReadError::Io)?);
        self.send(FrameKind::Challenge, &challenge)?;
        let transcript = handshake::transcript(open, &challenge);
        Ok(Stage::Proving {
            transcript,
            intent,
            world,
            key,
        })
    }

    /// Handles an authenticated client. A rank at the rendezvous has yet to send its hello.
    fn accepted(&mut self, intent: Intent, world: WorldName, seals: Seals) -> Option<Outcome> {
        match intent {
            Intent::Rendezvous { .. } => {
                self.reader = FrameReader::sealed(seals.opener);
                self.stage = Stage::Greeting(world, seals.sealer);
                None
            }
            Intent::Stream {
                from, stream_id, ..
            } => Some(Outcome::Stream {
                from,
                stream_id,
                seals,
            }),
            Intent::Relay { next, .. } => Some(Outcome::Relay { next }),
            Intent::Onward { .. } => Some(Outcome::Onward),
        }
    }

    /// Sends a short frame. For a client that follows the protocol, the send buffer has room for
    /// it.
    fn send(&self, kind: FrameKind, body: &[u8]) -> Result<(), ReadError> {
        let bytes = frame(kind, body);
        match net::try_write(&self.socket, &bytes)? {
            Some(count) if count == bytes.len() => Ok(()),
            _ => Err(ReadError::Io(io::ErrorKind::WriteZero.into())),
        }
    }
}
