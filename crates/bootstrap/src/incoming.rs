//! Incoming connections until they are admitted: authenticated, and at the rendezvous with their
//! hello.
//!
//! One thread serves all of them, and none can block it. Their number is bounded and each has a
//! deadline. When more arrive, connections that have sent nothing are evicted first, the oldest of
//! the most crowded origin. A rank sends its first message as soon as it is connected, so it waits
//! only for the backlog before it, which is accepted fast. Evicted next are connections that have
//! owed the proof of the secret for longer than [`GRACE`]. That time doubles for each [`CAPACITY`]
//! by which these evictions outnumber admissions. So the ranks of a large world get in even if each
//! of their answers takes long.

mod eviction;
mod pending;

use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use eviction::Origin;
use pending::{HandshakeError, PendingConnection, Step};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Resource, getrlimit};
use socket2::Socket;
use spark_ccl_fork::Unshared;
use spark_ccl_seal::{Sealer, Stream};

use crate::StreamId;
use crate::frame::{FrameReader, ReadError};
use crate::handshake::{Intent, OpenError, Rejection, WorldName};
use crate::hello::Hello;
use crate::keys::Keys;
use crate::net::{self, Bell};

/// The number of connections that are served at a time; further ones stay in the kernel's backlog.
/// A stranger needs more than 5,000 connections to fill both, if the backlog has its usual 4,096.
const CAPACITY: usize = 1024;
/// The number that is served in any case, even if descriptors are scarce.
const LEAST_CAPACITY: usize = 16;
/// How many connections a listener accepts before the next listener's turn.
const BATCH: usize = 128;
/// The pause after a full batch. It bounds the work that strangers can make: they get through a
/// backlog of 4,096 in a third of a second, and take a few percent of a core.
const PAUSE: Duration = Duration::from_millis(10);
/// How long a connection may take to authenticate itself.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The least time for which a connection that owes its proof cannot be evicted. Authenticated ones
/// are never evicted.
const GRACE: Duration = Duration::from_millis(250);
/// How often [`GRACE`] doubles at most: to 4 s.
const MOST_DOUBLINGS: u32 = 4;

/// How long a refused connection may take to send its first message.
const LAST_WORD: Duration = Duration::from_millis(20);

/// Which connections the listeners expect.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ListenerRole {
    /// Ranks that join the rendezvous.
    Rendezvous,
    /// Streams from other ranks to this one.
    Streams { rank: u32, size: u32 },
    /// Connections to pass on towards the rendezvous.
    Onward,
}

/// A connection that is authenticated.
pub(crate) enum Admitted {
    /// A rank at the rendezvous.
    Rank {
        world: WorldName,
        hello: Box<Hello>,
        stream: Unshared<Socket>,
        reader: FrameReader,
        sealer: Sealer,
    },
    /// A stream from another rank.
    Stream {
        from: u32,
        stream_id: StreamId,
        stream: Stream,
    },
    /// A rank's connection, to pass on to the next one.
    Relay { next: u32, near: Unshared<Socket> },
    /// A rank's connection, to pass on towards the rendezvous.
    Onward { near: Unshared<Socket> },
}

/// Whether to admit a stream from that rank of that id.
pub(crate) type Admits<'a> = &'a dyn Fn(u32, StreamId) -> bool;

/// Listeners, and their connections that are not admitted yet.
pub(crate) struct Incoming {
    role: ListenerRole,
    pub(crate) keys: Arc<Keys>,
    /// Not shared with forked children: after this process has died, its address must refuse
    /// connections.
    listeners: Vec<Unshared<Socket>>,
    pending: VecDeque<PendingConnection>,
    /// No connections are accepted before this time.
    closed_until: Option<Instant>,
    /// The number of connections that are served at a time.
    capacity: usize,
    /// Above [`LEAST_CAPACITY`] connections, those with descriptors from this number on are
    /// refused: the last quarter of this process's descriptors is the program's.
    descriptors: i32,
    /// Evictions of connections that owed their proof, less admissions.
    evictions: u32,
    refused: Refused,
    /// A descriptor to free for the moment in which a connection is refused for want of one.
    spare: Option<Bell>,
}

/// The refused connections, for the error about missing ranks.
#[derive(Default)]
pub(crate) struct Refused {
    pub(crate) secret: Tally,
    pub(crate) version: Tally,
    /// By other users, without a secret.
    pub(crate) owner: Tally,
    /// Closed because they did not authenticate in time, or before others needed their place.
    pub(crate) unproved: Tally,
    pub(crate) changed: Tally,
}

/// How many connections were refused for one reason, and where the last one came from.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) count: u64,
    pub(crate) last: String,
}

impl Refused {
    /// The number of connections that never authenticated, for an error about a missing rank. Empty
    /// if 0.
    pub(crate) fn unproved_text(&self) -> String {
        match &self.unproved {
            Tally { count: 0, .. } => String::new(),
            Tally { count: 1, last } => format!("; 1 connection never authenticated ({last})"),
            Tally { count, last } => {
                format!("; {count} connections never authenticated (last: {last})")
            }
        }
    }
}

impl Tally {
    /// Returns whether to log this one: the 1st, 2nd, 4th, 8th and so on, since strangers may keep
    /// coming.
    fn add(&mut self, last: String) -> bool {
        self.count += 1;
        self.last = last;
        self.count.is_power_of_two()
    }
}

impl Incoming {
    /// Serves the non-blocking `listeners`, and admits holders of one of the `keys`.
    pub(crate) fn new(
        role: ListenerRole,
        keys: impl Into<Arc<Keys>>,
        listeners: Vec<Socket>,
    ) -> Self {
        let pending = VecDeque::new();
        Incoming {
            role,
            keys: keys.into(),
            listeners: listeners.into_iter().map(Unshared::new).collect(),
            pending,
            closed_until: None,
            capacity: CAPACITY,
            descriptors: descriptors_for_strangers(),
            evictions: 0,
            refused: Refused::default(),
            spare: Bell::new().ok(),
        }
    }

    /// Adds the descriptors that wake [`Incoming::serve`].
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

    /// When [`Incoming::serve`] is due even if no descriptor is ready.
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

    /// Advances all connections without blocking, and returns the ones that are now authenticated.
    /// Rejects streams that `admits` refuses: the owner already has them, or dials for them itself.
    pub(crate) fn serve(&mut self, now: Instant, admits: Admits<'_>) -> Vec<Admitted> {
        if self.closed_until.is_some_and(|until| until <= now) {
            self.closed_until = None;
        }
        // Reads what has arrived first: it may make room, and saves its senders from eviction.
        let mut connections = self.advance(now, admits);
        connections.extend(self.accept_connections(now, admits));
        self.evictions = self.evictions.saturating_sub(connections.len() as u32);
        connections
    }

    fn advance(&mut self, now: Instant, admits: Admits<'_>) -> Vec<Admitted> {
        let all = std::mem::take(&mut self.pending);
        all.into_iter()
            .filter_map(|pending| self.step(pending, now, admits))
            .collect()
    }

    /// Advances a connection, and keeps it unless it is over or admitted.
    fn step(
        &mut self,
        mut pending: PendingConnection,
        now: Instant,
        admits: Admits<'_>,
    ) -> Option<Admitted> {
        match pending.step(self.role, &self.keys, admits) {
            Ok(Step::Done(connection)) => return Some(pending.into_admitted(connection)),
            Ok(Step::Wait) if pending.since + HANDSHAKE_TIMEOUT > now => {
                self.pending.push_back(pending);
            }
            Ok(Step::Wait) => {
                spark_ccl_log::debug!("no handshake in time, closed: {}", pending.name());
                self.refused.unproved.add(pending.name());
            }
            Err(error) => self.turn_away(&pending, &error),
        }
        None
    }

    /// Accepts connections from each listener in turn. Returns the connections that are
    /// authenticated at once.
    fn accept_connections(&mut self, now: Instant, admits: Admits<'_>) -> Vec<Admitted> {
        let mut admitted = Vec::new();
        let mut is_busy = false;
        for listener in 0..self.listeners.len() {
            let mut accepted = 0;
            while self.closed_until.is_none() && accepted < BATCH && self.make_room(now) {
                match self.listeners[listener].accept() {
                    Ok((socket, address)) => {
                        let origin = Origin::new(listener, &address);
                        let pending = PendingConnection::new(socket, origin, now);
                        admitted.extend(self.step(pending, now, admits));
                        accepted += 1;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // The client has closed the connection already.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => {
                        // Most likely no descriptor is free. Frees some, and does not spin.
                        spark_ccl_log::warn!("cannot accept a connection: {error}");
                        let evicted = self.evict(BATCH, |pending| !pending.is_authenticated());
                        if evicted == 0 && net::lacks_descriptors(&error) {
                            self.turn_away_next(listener);
                        }
                        self.closed_until = Some(now + GRACE);
                    }
                }
            }
            is_busy |= accepted == BATCH;
        }
        if is_busy {
            self.closed_until.get_or_insert(now + PAUSE);
        }
        admitted
    }

    /// Refuses the next connection for want of a descriptor: its rank would wait in vain.
    fn turn_away_next(&mut self, listener: usize) {
        if self.spare.take().is_some()
            && let Ok((socket, _)) = self.listeners[listener].accept()
        {
            // The frame fits the empty send buffer of a new connection.
            let _ = net::try_write(&socket, &Rejection::Descriptors.frame());
            // If it were closed with the first message unread, it would be reset, and the answer
            // might be lost.
            let until = Instant::now() + LAST_WORD;
            let _ = socket.shutdown(Shutdown::Write);
            let _ = net::wait(socket.as_fd(), PollFlags::IN, until);
            let _ = net::try_read(&socket, &mut [0; 512]);
        }
        self.spare = Bell::new().ok();
    }

    /// Whether one more connection fits. Evicts some if necessary.
    fn make_room(&mut self, now: Instant) -> bool {
        let is_scarce = |last: &PendingConnection| last.socket.as_raw_fd() >= self.descriptors;
        let capacity = match self.pending.back() {
            Some(last) if is_scarce(last) => {
                self.pending.len().clamp(LEAST_CAPACITY, self.capacity)
            }
            _ => self.capacity,
        };
        if self.pending.len() < capacity {
            return true;
        }
        let count = BATCH.min(capacity / 4);
        if self.evict(count, PendingConnection::is_silent) > 0 {
            return true;
        }
        let safe_for = GRACE * (1 << (self.evictions / self.capacity as u32).min(MOST_DOUBLINGS));
        let owes = |pending: &PendingConnection| !pending.is_authenticated();
        let evicted = self.evict(count, |pending| {
            owes(pending) && pending.since + safe_for <= now
        });
        if evicted == 0 {
            // If all are ranks that have yet to send their hello, the next one waits for a moment.
            let eldest = self.pending.iter().find(|pending| owes(pending));
            self.closed_until = Some(eldest.map_or(now, |eldest| eldest.since) + safe_for);
            return false;
        }
        let most = (MOST_DOUBLINGS + 1) * self.capacity as u32;
        self.evictions = (self.evictions + evicted as u32).min(most);
        true
    }

    /// Closes up to `count` connections that may go, and returns how many.
    fn evict(&mut self, count: usize, may_go: impl Fn(&PendingConnection) -> bool) -> usize {
        let origin = |pending: &PendingConnection| may_go(pending).then_some(pending.origin);
        let evicted = eviction::take(&mut self.pending, count, origin);
        for pending in &evicted {
            // Resets instead of closing in order: the kernel would keep thousands a second for a
            // minute each.
            let _ = pending.socket.set_linger(Some(Duration::ZERO));
            if self.refused.unproved.add(pending.name()) {
                let Tally { count, last } = &self.refused.unproved;
                spark_ccl_log::warn!(
                    "{count} connections that never authenticated were closed, the last from {last}"
                );
            }
        }
        evicted.len()
    }

    fn turn_away(&mut self, pending: &PendingConnection, error: &HandshakeError) {
        let from = pending.name();
        let mut is_told = false;
        let answer = match error {
            HandshakeError::Read(ReadError::Changed(_)) => {
                is_told = self.refused.changed.add(from.clone());
                None
            }
            HandshakeError::Read(_) | HandshakeError::Hello(_) => None,
            HandshakeError::Open(OpenError::Version(theirs)) => {
                let last = format!("{from}, version {theirs}");
                is_told = self.refused.version.add(last);
                Some(Rejection::Version.frame())
            }
            HandshakeError::Secret => {
                is_told = self.refused.secret.add(from.clone());
                Some(Rejection::Secret.frame())
            }
            HandshakeError::Owner(problem) => {
                is_told = self.refused.owner.add(format!("{from}, {problem}"));
                Some(Rejection::of_user(problem))
            }
            HandshakeError::Over => Some(Rejection::Over.frame()),
            HandshakeError::Misdirected => Some(Rejection::Misdirected.frame()),
            HandshakeError::Crossed => Some(Rejection::Crossed.frame()),
            HandshakeError::Open(OpenError::Wire(_)) | HandshakeError::Wire(_) => {
                Some(Rejection::Malformed.frame())
            }
        };
        if is_told {
            let Refused {
                secret,
                version,
                owner,
                changed,
                ..
            } = &self.refused;
            let so_far = secret.count + version.count + owner.count + changed.count;
            spark_ccl_log::warn!("connection from {from} refused, {so_far} so far: {error}");
        } else {
            spark_ccl_log::debug!("connection from {from} refused: {error}");
        }
        if let Some(answer) = answer {
            // The frame fits the empty send buffer of a new connection. It does not matter if a
            // stranger misses it.
            let _ = net::try_write(&pending.socket, &answer);
        }
    }
}

impl ListenerRole {
    fn check(self, intent: Intent) -> Result<(), HandshakeError> {
        let is_expected = match (self, intent) {
            (ListenerRole::Rendezvous, Intent::Rendezvous { .. })
            | (ListenerRole::Onward, Intent::Onward { .. }) => true,
            (ListenerRole::Streams { rank, size }, Intent::Stream { from, to, .. }) => {
                to == rank && from < size
            }
            (ListenerRole::Streams { rank, size }, Intent::Relay { from, next }) => {
                next != rank && from.max(next) < size
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

/// Three quarters of the descriptors that this process may open.
fn descriptors_for_strangers() -> i32 {
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(i32::MAX, |limit| {
        i32::try_from(limit / 4 * 3).unwrap_or(i32::MAX)
    })
}

#[cfg(test)]
mod tests;
