//! Mutual authentication: the messages, and the side that connects.
//!
//! ```text
//! client                                   server
//! Open { version, intent, nonce }   ->
//!                                   <-     Challenge { version, nonce }
//! Proof { HMAC(key, "client", t) }  ->
//!                                   <-     Accept { HMAC(key, "server", t) } or Reject { why }
//! ```
//!
//! `t` is the transcript of both previous messages, so neither half can be replayed or modified.
//! The server proves itself second: a stranger that connects learns nothing that depends on the
//! key. Without a secret, the key is public, and each end checks the other's user instead.
//!
//! Each direction of the connection then has a key of its own, `HMAC(key, "client's seal" or
//! "server's seal", t)`, for the tags of what follows ([`seals`]).

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use rustix::event::PollFlags;
use socket2::{Domain, Socket};
use spark_ccl_fork::Unshared;
use spark_ccl_seal::{Seals, Stream};

use crate::frame::{FrameReader, ReadError};
use crate::net;
use crate::owner::{self, NotOwn};
use crate::secret::random;
use crate::wire::{FrameKind, Reader, WireError, Writer, frame};
use crate::{Error, Secret, StreamId, StreamKind};

/// The version of the bootstrap's wire protocol.
pub(crate) const PROTOCOL: u16 = 5;
/// The longest frame before both sides are authenticated.
pub(crate) const MAX_HANDSHAKE: usize = 256;
/// The roles, which are part of a proof.
pub(crate) const CLIENT: &[u8] = b"client";
pub(crate) const SERVER: &[u8] = b"server";

const MAGIC: [u8; 4] = *b"SCCL";

/// Distinguishes worlds whose rendezvous have the same address.
pub(crate) type WorldName = [u8; 8];

/// The purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Intent {
    /// A rank joins the rendezvous of this world.
    Rendezvous { world: WorldName },
    /// A stream between two ranks.
    Stream {
        from: u32,
        to: u32,
        stream_id: StreamId,
    },
    /// A connection to pass on: opened by rank `from`, to be connected to rank `next`.
    Relay { from: u32, next: u32 },
    /// A connection to pass on towards the rendezvous of this world.
    Onward { world: WorldName },
}

/// The client's first message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Open {
    pub(crate) version: u16,
    pub(crate) intent: Intent,
    pub(crate) nonce: [u8; 32],
}

impl Open {
    pub(crate) fn new(intent: Intent) -> Result<Self, Error> {
        Ok(Open {
            version: PROTOCOL,
            intent,
            nonce: random()?,
        })
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        to.bytes(&MAGIC).u16(self.version);
        match self.intent {
            Intent::Rendezvous { world } => to.u8(0).bytes(&world),
            Intent::Stream {
                from,
                to: target,
                stream_id,
            } => to
                .u8(1)
                .u32(from)
                .u32(target)
                .u64(stream_id.context)
                .u8(stream_id.kind as u8)
                .u32(stream_id.number),
            Intent::Relay { from, next } => to.u8(2).u32(from).u32(next),
            Intent::Onward { world } => to.u8(3).bytes(&world),
        };
        to.bytes(&self.nonce).finish()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, OpenError> {
        let mut from = Reader::new(bytes);
        if from.array()? != MAGIC {
            return Err(WireError::Field("mark").into());
        }
        let version = from.u16()?;
        if version != PROTOCOL {
            return Err(OpenError::Version(version));
        }
        let intent = match from.u8()? {
            0 => Intent::Rendezvous {
                world: from.array()?,
            },
            1 => Intent::Stream {
                from: from.u32()?,
                to: from.u32()?,
                stream_id: StreamId {
                    context: from.u64()?,
                    kind: StreamKind::from_byte(from.u8()?)
                        .ok_or(WireError::Field("kind of stream"))?,
                    number: from.u32()?,
                },
            },
            2 => Intent::Relay {
                from: from.u32()?,
                next: from.u32()?,
            },
            3 => Intent::Onward {
                world: from.array()?,
            },
            _ => return Err(WireError::Field("intent").into()),
        };
        let nonce = from.array()?;
        from.end()?;
        Ok(Open {
            version,
            intent,
            nonce,
        })
    }
}

/// Why a client's first message is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OpenError {
    #[error("protocol version {0} where {PROTOCOL} was expected")]
    Version(u16),
    #[error("{0}")]
    Wire(#[from] WireError),
}

/// The server's answer to a client's [`Open`]: version and nonce.
pub(crate) fn challenge(nonce: &[u8; 32]) -> Vec<u8> {
    Writer::default().u16(PROTOCOL).bytes(nonce).finish()
}

/// The bytes that both sides sign.
pub(crate) fn transcript(open: &[u8], challenge: &[u8]) -> Vec<u8> {
    Writer::default()
        .u16(open.len() as u16)
        .bytes(open)
        .bytes(challenge)
        .finish()
}

/// The seals of a connection, for the end of this role.
pub(crate) fn seals(key: &Secret, transcript: &[u8], role: &[u8]) -> Seals {
    let of_client = key.sign(b"client's seal", transcript);
    let of_server = key.sign(b"server's seal", transcript);
    if role == CLIENT {
        Seals::new(&of_client, &of_server)
    } else {
        Seals::new(&of_server, &of_client)
    }
}

/// An authenticated connection.
pub(crate) struct Entered {
    pub(crate) socket: Unshared<Socket>,
    pub(crate) seals: Seals,
}

impl Entered {
    /// A stream between two ranks. Within a host it is not sealed: only the kernel is between them.
    pub(crate) fn into_stream(self) -> Stream {
        let Entered { socket, seals } = self;
        let is_tcp = |domain| matches!(domain, Domain::IPV4 | Domain::IPV6);
        // A socket of unknown kind counts as one that needs seals.
        let is_sealed = socket.domain().map_or(true, is_tcp);
        Stream {
            socket,
            seals: is_sealed.then_some(seals),
        }
    }
}

/// Why a server rejects a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// The client's proof is wrong.
    Secret = 1,
    /// The server uses another version.
    Version = 2,
    /// The connection is meant for another rank, or for another kind of listener.
    Misdirected = 3,
    /// The client's message is malformed.
    Malformed = 4,
    /// The server dials the client for the same stream itself, or already has that stream.
    Crossed = 5,
    /// There is no secret, and the client does not belong to the server's user.
    Owner = 6,
    /// The server's process has no descriptor for the connection.
    Descriptors = 7,
    /// The server lacks this world, or has it no longer.
    Over = 8,
    /// The relay does not reach the next rank.
    Unreached = 9,
}

impl Rejection {
    pub(crate) fn frame(self) -> Vec<u8> {
        frame(
            FrameKind::Reject,
            &Writer::default().u8(self as u8).u16(PROTOCOL).finish(),
        )
    }

    /// [`Rejection::Owner`], with the user of the server and that of the client where known.
    pub(crate) fn of_user(problem: &NotOwn) -> Vec<u8> {
        let mut body = Writer::default();
        body.u8(Self::Owner as u8).u16(PROTOCOL);
        if let NotOwn::Other { ours, theirs } = problem {
            body.u32(*ours).u32(*theirs);
        }
        frame(FrameKind::Reject, &body.finish())
    }

    fn to_enter_error(body: &[u8], peer: &str) -> EnterError {
        let is = |rejection: Self| body.first() == Some(&(rejection as u8));
        if is(Self::Crossed) {
            EnterError::Crossed
        } else if is(Self::Unreached) {
            // The next attempt may find another way round.
            let text = "the rank that passes the connection on does not reach the next one";
            EnterError::Broken(io::Error::new(io::ErrorKind::HostUnreachable, text))
        } else {
            EnterError::Final(Self::error(body, peer))
        }
    }

    fn error(body: &[u8], peer: &str) -> Error {
        let mut from = Reader::new(body);
        let parts = from.u8().and_then(|code| Ok((code, from.u16()?)));
        let protocol = |reason: &str| Error::Protocol {
            peer: peer.to_owned(),
            reason: reason.to_owned(),
        };
        match parts {
            Ok((1, _)) => Error::Auth {
                peer: peer.to_owned(),
            },
            Ok((2, theirs)) => Error::Version {
                peer: peer.to_owned(),
                ours: PROTOCOL,
                theirs,
            },
            Ok((6, _)) => {
                let users = from.u32().and_then(|server| Ok((server, from.u32()?)));
                let why = "it cannot tell which user this process belongs to".to_owned();
                let problem = match users {
                    Ok((theirs, ours)) => NotOwn::Other { ours, theirs },
                    Err(_) => NotOwn::Unknown(why),
                };
                user_error(&problem, peer)
            }
            Ok((3, _)) => protocol("another rank or another kind of listener answered there"),
            Ok((8, _)) => Error::Expired(format!(
                "{peer} knows it no longer: its ranks have met already, or its time is over"
            )),
            Ok((7, _)) => Error::Os {
                doing: format!("be accepted by {peer}"),
                error: "its process, or its host, has as many files open as it may: raise \
                        `ulimit -n` there, or close what it does not need"
                    .to_owned(),
            },
            _ => protocol("it refused the first message"),
        }
    }
}

/// Why a client's handshake failed.
pub(crate) enum EnterError {
    /// Retrying is pointless.
    Final(Error),
    /// The connection broke; the server may have been busy with strangers.
    Broken(io::Error),
    /// The other end provides the stream.
    Crossed,
}

impl EnterError {
    /// Connecting failed. If this process has no descriptor left, retrying is in vain.
    pub(crate) fn from_connect(error: io::Error) -> Self {
        if net::lacks_descriptors(&error) {
            EnterError::Final(Error::os("open a connection", &error))
        } else {
            EnterError::Broken(error)
        }
    }

    fn from_read(error: ReadError, peer: &str) -> Self {
        match error {
            ReadError::Closed => EnterError::Broken(io::Error::new(
                io::ErrorKind::ConnectionReset,
                "connection closed during the handshake",
            )),
            ReadError::Io(error) => EnterError::Broken(error),
            // Nothing in a handshake is sealed.
            ReadError::Changed(error) => EnterError::Broken(io::Error::other(error)),
            ReadError::Wire(error) => EnterError::Final(Error::Protocol {
                peer: peer.to_owned(),
                reason: format!("it sent {error}"),
            }),
        }
    }
}

/// Authenticates both ends of a new connection, as the side that connected. `peer` is for errors.
///
/// The other end must have answered by `answer_by`. After its answer it may have this rank's proof,
/// and use the stream at any time: only the deadline applies then.
pub(crate) fn enter(
    socket: &Socket,
    key: &Secret,
    open: &Open,
    peer: &str,
    answer_by: Instant,
    deadline: Instant,
) -> Result<Seals, EnterError> {
    let mut entry = Entry::begin(socket, open)?;
    while !entry.step(socket, key, peer)? {
        let until = if entry.is_challenged {
            deadline
        } else {
            answer_by
        };
        net::wait(socket.as_fd(), PollFlags::IN, until).map_err(EnterError::Broken)?;
    }
    Ok(entry.seals(key))
}

/// A client's handshake in progress.
pub(crate) struct Entry {
    reader: FrameReader,
    /// The encoded [`Open`]; from the challenge on, the transcript.
    transcript: Vec<u8>,
    is_challenged: bool,
}

impl Entry {
    /// Sends the first message over a new connection.
    pub(crate) fn begin(socket: &Socket, open: &Open) -> Result<Self, EnterError> {
        let transcript = open.encode();
        send(socket, FrameKind::Open, &transcript)?;
        Ok(Self {
            reader: FrameReader::default(),
            transcript,
            is_challenged: false,
        })
    }

    /// Whether the other end has this end's proof.
    pub(crate) fn has_proved(&self) -> bool {
        self.is_challenged
    }

    /// The seals of the connection, once both ends are authenticated.
    pub(crate) fn seals(&self, key: &Secret) -> Seals {
        seals(key, &self.transcript, CLIENT)
    }

    /// Advances as far as the bytes that have arrived allow. Returns whether both ends are
    /// authenticated.
    pub(crate) fn step(
        &mut self,
        socket: &Socket,
        key: &Secret,
        peer: &str,
    ) -> Result<bool, EnterError> {
        while let Some((kind, body)) = self
            .reader
            .poll(socket, MAX_HANDSHAKE)
            .map_err(|error| EnterError::from_read(error, peer))?
        {
            match kind {
                FrameKind::Challenge if !self.is_challenged => {
                    // The other end has accepted the connection, so its user is known now.
                    if key.is_public() {
                        owner::check(socket)
                            .map_err(|problem| EnterError::Final(user_error(&problem, peer)))?;
                    }
                    self.is_challenged = true;
                    self.transcript = transcript(&self.transcript, &body);
                    send(
                        socket,
                        FrameKind::Proof,
                        &key.sign(CLIENT, &self.transcript),
                    )?;
                }
                FrameKind::Accept if self.is_challenged => {
                    let proof = body.as_slice().try_into();
                    if proof.is_ok_and(|p| key.verify(SERVER, &self.transcript, p)) {
                        return Ok(true);
                    }
                    let peer = peer.to_owned();
                    return Err(EnterError::Final(Error::Auth { peer }));
                }
                FrameKind::Reject => return Err(Rejection::to_enter_error(&body, peer)),
                seen => {
                    let error = WireError::Unexpected {
                        expected: "handshake",
                        seen,
                    };
                    return Err(EnterError::from_read(error.into(), peer));
                }
            }
        }
        Ok(false)
    }
}

fn user_error(problem: &NotOwn, peer: &str) -> Error {
    Error::User {
        peer: peer.to_owned(),
        problem: problem.to_string(),
    }
}

/// Sends a short frame, which fits the empty send buffer of a new connection.
fn send(socket: &Socket, kind: FrameKind, body: &[u8]) -> Result<(), EnterError> {
    let bytes = frame(kind, body);
    match net::try_write(socket, &bytes) {
        Ok(Some(count)) if count == bytes.len() => Ok(()),
        Ok(_) => Err(EnterError::Broken(io::ErrorKind::WriteZero.into())),
        Err(error) => Err(EnterError::Broken(error)),
    }
}

#[cfg(test)]
mod tests;
