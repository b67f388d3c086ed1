//! Incoming connections until they are admitted: authenticated, and at the rendezvous with their hello.
//!
//! One thread serves all of them, and none can block it. Their number is bounded and each has a deadline. Where more
//! come, the oldest one that is not authenticated is evicted for the next one. At first, each has [`GRACE`] to answer.
//! That time doubles for each [`CAPACITY`] by which evictions outnumber admissions, so that the ranks of a large world get
//! in also where each of their answers takes long.

mod pending;

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use socket2::Socket;
use spark_ccl_fork::Unshared;

use crate::handshake::{Intent, OpenError, Rejection};
use crate::hello::Hello;
use crate::net;
use crate::{Purpose, Secret};
use pending::{HandshakeError, PendingConnection, Step};

/// How many connections are served at a time; further ones stay in the kernel's backlog.
const CAPACITY: usize = 64;
/// How long a connection may take to authenticate itself.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an unauthenticated connection is at least safe from eviction. Authenticated ones are never evicted.
const GRACE: Duration = Duration::from_millis(250);
/// The least time between two evictions, at first. If there was none, or it stayed the same, a machine so busy that answers
/// take longer than [`GRACE`] would evict all ranks before they have answered, and again when they retry.
const EVICTION_PAUSE: Duration = GRACE.checked_div(CAPACITY as u32).unwrap();
/// How often that doubles at most: a connection then stays for 4 s.
const MOST_DOUBLINGS: u32 = 4;

/// Which connections the listeners expect.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ListenerRole {
    /// Ranks that join the rendezvous.
    Rendezvous,
    /// Streams from other ranks to this one.
    Streams { rank: u32, size: u32 },
}

/// A connection that is authenticated.
pub(crate) enum Admitted {
    /// A rank at the rendezvous.
    Rank {
        hello: Box<Hello>,
        stream: Unshared<Socket>,
    },
    /// A stream from another rank.
    Stream {
        from: u32,
        purpose: Purpose,
        stream: Unshared<Socket>,
    },
}

/// Whether to admit a stream from that rank for that purpose.
pub(crate) type Admits<'a> = &'a dyn Fn(u32, Purpose) -> bool;

/// Listeners, and the connections that are not authenticated yet.
pub(crate) struct Lobby {
    role: ListenerRole,
    key: Secret,
    /// Not shared with forked children: after this process has died, its address must refuse connections.
    listeners: Vec<Unshared<Socket>>,
    pending: VecDeque<PendingConnection>,
    /// No connections are accepted before this time.
    closed_until: Option<Instant>,
    last_eviction: Option<Instant>,
    /// How many more were evicted than admitted.
    evictions: u32,
    refused: Refused,
}

/// The refused connections, for the error about missing ranks.
#[derive(Default)]
pub(crate) struct Refused {
    pub(crate) secret: Tally,
    pub(crate) version: Tally,
}

/// How many connections were refused for one reason, and where the last one came from.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) count: u64,
    pub(crate) last: String,
}

impl Tally {
    /// Returns whether to tell users: the 1st, 2nd, 4th, 8th and so on, since strangers may come without end.
    fn add(&mut self, last: String) -> bool {
        self.count += 1;
        self.last = last;
        self.count.is_power_of_two()
    }
}

impl Lobby {
    /// Serves the non-blocking `listeners`, and admits holders of `key`.
    pub(crate) fn new(role: ListenerRole, key: Secret, listeners: Vec<Socket>) -> Self {
        let pending = VecDeque::new();
        Lobby {
            role,
            key,
            listeners: listeners.into_iter().map(Unshared::new).collect(),
            pending,
            closed_until: None,
            last_eviction: None,
            evictions: 0,
            refused: Refused::default(),
        }
    }

    /// Adds the descriptors that wake [`Lobby::serve`].
    pub(crate) fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        let listeners = if self.closed_until.is_none() {
            &self.listeners[..]
        } else {
            &[]
        };
        let sockets = listeners
            .iter()
            .chain(self.pending.iter().map(|pending| &pending.socket));
        fds.extend(sockets.map(|socket| PollFd::new(socket, PollFlags::IN)));
    }

    /// When [`Lobby::serve`] is due even if no descriptor is ready.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        let eldest = self
            .pending
            .front()
            .map(|pending| pending.since + HANDSHAKE_TIMEOUT);
        [eldest, self.closed_until].into_iter().flatten().min()
    }

    /// The connections refused so far.
    pub(crate) fn refused(&self) -> &Refused {
        &self.refused
    }

    /// Advances all connections without blocking, and returns those that are now authenticated. Rejects streams that
    /// `admits` refuses, because the owner has them already or calls for them itself.
    pub(crate) fn serve(&mut self, now: Instant, admits: Admits<'_>) -> Vec<Admitted> {
        if self.closed_until.is_some_and(|until| until <= now) {
            self.closed_until = None;
        }
        // What has arrived is read first: it may make room, and spares its senders an eviction.
        let mut connections = self.advance(now, admits);
        if self.accept_connections(now) {
            connections.extend(self.advance(now, admits));
        }
        self.evictions = self.evictions.saturating_sub(connections.len() as u32);
        connections
    }

    fn advance(&mut self, now: Instant, admits: Admits<'_>) -> Vec<Admitted> {
        let mut connections = Vec::new();
        for mut pending in std::mem::take(&mut self.pending) {
            match pending.step(self.role, &self.key, admits) {
                Ok(Step::Done(connection)) => connections.push(pending.into_admitted(connection)),
                Ok(Step::Wait) if pending.since + HANDSHAKE_TIMEOUT > now => {
                    self.pending.push_back(pending);
                }
                Ok(Step::Wait) => {
                    tracing::debug!(from = pending.name(), "no handshake in time, closed");
                }
                Err(error) => self.turn_away(&pending, &error),
            }
        }
        connections
    }

    /// Returns whether there are new connections.
    fn accept_connections(&mut self, now: Instant) -> bool {
        let mut has_new = false;
        for listener in 0..self.listeners.len() {
            while self.closed_until.is_none() && self.make_room(now) {
                match self.listeners[listener].accept() {
                    Ok((socket, _)) => {
                        self.pending.push_back(PendingConnection::new(socket, now));
                        has_new = true;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // The client has closed the connection already.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => {
                        // Most likely no descriptor is free. Make one free, and do not spin.
                        tracing::warn!(%error, "cannot accept a connection");
                        self.evict(now);
                        self.closed_until = Some(now + GRACE);
                    }
                }
            }
        }
        has_new
    }

    /// Whether one more connection fits. If need be, evicts the oldest one that is not authenticated.
    fn make_room(&mut self, now: Instant) -> bool {
        if self.pending.len() < CAPACITY {
            return true;
        }
        // If all are ranks that have yet to say hello, the next one waits for a moment.
        let protected_until = self
            .eldest_stranger()
            .map_or(now, |eldest| self.pending[eldest].since)
            + GRACE;
        let doublings = (self.evictions / CAPACITY as u32).min(MOST_DOUBLINGS);
        let pause = EVICTION_PAUSE * (1 << doublings);
        let paused_until = self.last_eviction.map(|last| last + pause);
        let closed_until = paused_until.map_or(protected_until, |until| until.max(protected_until));
        if closed_until > now {
            self.closed_until = Some(closed_until);
            return false;
        }
        self.evict(now);
        true
    }

    /// Closes the oldest connection that is not authenticated, if there is one.
    fn evict(&mut self, now: Instant) {
        if let Some(eldest) = self.eldest_stranger() {
            self.pending.remove(eldest);
            self.last_eviction = Some(now);
            self.evictions = (self.evictions + 1).min((MOST_DOUBLINGS + 1) * CAPACITY as u32);
        }
    }

    fn eldest_stranger(&self) -> Option<usize> {
        self.pending
            .iter()
            .position(|pending| !pending.is_authenticated())
    }

    fn turn_away(&mut self, pending: &PendingConnection, error: &HandshakeError) {
        let from = pending.name();
        let mut is_told = false;
        let rejection = match error {
            HandshakeError::Read(_) => None,
            HandshakeError::Open(OpenError::Version(theirs)) => {
                let last = format!("{from}, version {theirs}");
                is_told = self.refused.version.add(last);
                Some(Rejection::Version)
            }
            HandshakeError::Secret => {
                is_told = self.refused.secret.add(from.clone());
                Some(Rejection::Secret)
            }
            HandshakeError::Misdirected => Some(Rejection::Misdirected),
            HandshakeError::Crossed => Some(Rejection::Crossed),
            HandshakeError::Open(OpenError::Wire(_)) | HandshakeError::Wire(_) => {
                Some(Rejection::Malformed)
            }
        };
        if is_told {
            let so_far = self.refused.secret.count + self.refused.version.count;
            tracing::warn!(from, %error, so_far, "connection refused");
        } else {
            tracing::debug!(from, %error, "connection refused");
        }
        if let Some(rejection) = rejection {
            // It fits into the empty send buffer of a new connection. It does not matter if a stranger misses it.
            let _ = net::try_write(&pending.socket, &rejection.frame());
        }
    }
}

impl ListenerRole {
    fn check(self, intent: Intent) -> Result<(), HandshakeError> {
        let is_expected = match (self, intent) {
            (ListenerRole::Rendezvous, Intent::Rendezvous) => true,
            (ListenerRole::Streams { rank, size }, Intent::Stream { from, to, .. }) => {
                to == rank && from < size
            }
            _ => false,
        };
        if is_expected {
            Ok(())
        } else {
            Err(HandshakeError::Misdirected)
        }
    }
}

#[cfg(test)]
mod tests;
