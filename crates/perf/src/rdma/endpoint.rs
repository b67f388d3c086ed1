//! This rank's end of a measured rail: a queue pair, and the memory that it transfers.
//!
//! The code is unsafe because requests refer to memory by its address.

#![allow(unsafe_code)]

use std::os::fd::AsFd;

use spark_ccl_console::rails::RailEnds;
use spark_ccl_verbs::{
    CanReceive, CompletionChannel, CompletionQueue, Error, Exposed, Piece, PollRoom,
    ProtectionDomain, QueuePair, Remote, Request, Rts,
};

use super::args::Verb;
use crate::error;
use crate::pair::{Allocator, differing, pattern};

/// The number of all receives; those of other requests are smaller.
const RECEIVE: u64 = 1 << 62;

/// A queue pair, and the queue of its completions.
#[derive(Debug)]
pub(super) struct Connection<S> {
    pub(super) pair: QueuePair<S>,
    pub(super) queue: CompletionQueue,
    pub(super) events: CompletionChannel,
}

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    Write,
    /// Writes with an immediate value, which completes a receive at the peer.
    WriteWithImm,
    Read,
    Send,
}

/// This rank's end of a connected rail, with its memory and the address of the peer's.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) rail: RailEnds,
    // Dropped before the memory, after which no device accesses that.
    connection: Connection<Rts>,
    /// The outgoing bytes, then as many incoming ones.
    memory: Exposed,
    /// The number of bytes of each.
    half: usize,
    /// The peer's memory.
    remote: Remote,
    /// The number of posted requests, and of those known to be complete.
    pub(super) posted: u64,
    completed: u64,
    /// The number of messages that have arrived.
    pub(super) received: u64,
    /// How many of them `latency` has consumed one by one.
    pub(super) consumed: u64,
}

/// The memory of an endpoint, before the peer's is known.
pub(super) fn memory(
    domain: &ProtectionDomain,
    allocator: &Allocator,
    half: usize,
) -> Result<Exposed, error::Error> {
    use spark_ccl_verbs::Access;
    let mut buffer = allocator.zeroed(2 * half)?;
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
    // SAFETY: the buffer's words are aligned and 0, and stay where they are until it is dropped. It
    // is passed on, so nothing else in this process accesses them.
    Ok(unsafe { domain.expose_owned(buffer.words(), buffer, access) }?)
}

impl<S: CanReceive> Connection<S> {
    /// Posts a receive for the peer's probe, a message without bytes.
    pub(super) fn post_probe_receive(&mut self) -> Result<(), Error> {
        let mut receives = self.pair.receives();
        // SAFETY: the receive refers to no memory.
        unsafe { receives.receive(RECEIVE, &[])? };
        receives.post().map_err(|post| post.error)
    }
}

impl Connection<Rts> {
    /// Sends a probe, a message without bytes.
    pub(super) fn send_probe(&mut self) -> Result<(), Error> {
        let mut batch = self.pair.batch();
        // SAFETY: the request refers to no memory.
        unsafe { batch.send(Request::new(0).signalled(), &[])? };
        batch.post().map_err(|post| post.error)
    }

    /// Returns what has completed: the number of the last request, and the number of receives.
    pub(super) fn poll(&self, room: &mut PollRoom) -> Result<(Option<u64>, usize), String> {
        let (mut last, mut receives) = (None, 0);
        for completion in self.queue.poll(room).map_err(|error| error.to_string())? {
            match completion {
                Ok(completion) if completion.wr_id == RECEIVE => receives += 1,
                Ok(completion) => last = Some(completion.wr_id),
                Err(error) => return Err(self.pair.failure(error).to_string()),
            }
        }
        Ok((last, receives))
    }
}

impl Endpoint {
    pub(super) fn new(
        rail: RailEnds,
        connection: Connection<Rts>,
        memory: Exposed,
        remote: Remote,
    ) -> Self {
        let half = memory.bytes() / 2;
        Self {
            rail,
            connection,
            memory,
            half,
            remote,
            posted: 0,
            completed: 0,
            received: 0,
            consumed: 0,
        }
    }

    /// The requests that are not known to be complete.
    pub(super) fn in_flight(&self) -> u64 {
        self.posted - self.completed
    }

    /// Posts a request for the first bytes of the memory. Its completion becomes known with that of
    /// the next request that is `signalled`.
    pub(super) fn post(&mut self, work: Work, bytes: usize, signalled: bool) -> Result<(), Error> {
        let half = self.half;
        let outgoing = self.memory.piece(0..bytes)?;
        let mut request = Request::new(self.posted + 1);
        if signalled {
            request = request.signalled();
        }
        if work != Work::Read && bytes <= self.connection.pair.most_inline() {
            request = request.inline();
        }
        let there = self.remote.offset(half as u64);
        let mut batch = self.connection.pair.batch();
        // SAFETY: the memory is only accessed with atomic operations. It is deregistered and freed
        // only after the queue pair has been destroyed, which is dropped first.
        unsafe {
            match work {
                Work::Write => batch.write(request, &[outgoing], there)?,
                Work::WriteWithImm => batch.write_with_imm(request, &[outgoing], there, 0)?,
                Work::Read => {
                    let incoming = self.memory.piece(half..half + bytes)?;
                    batch.read(request, &[incoming], self.remote)?;
                }
                Work::Send => batch.send(request, &[outgoing])?,
            }
        }
        batch.post().map_err(|post| post.error)?;
        self.posted += 1;
        Ok(())
    }

    /// Posts receives for `count` more messages.
    pub(super) fn post_receives(&mut self, mut count: usize) -> Result<(), Error> {
        let incoming: Piece = self.memory.piece(self.half..2 * self.half)?;
        while count > 0 {
            let mut receives = self.connection.pair.receives();
            while count > 0 && !receives.is_full() {
                // SAFETY: the memory is only accessed with atomic operations. It is deregistered
                // and freed only after the queue pair has been destroyed, which is dropped first.
                unsafe { receives.receive(RECEIVE, &[incoming])? };
                count -= 1;
            }
            receives.post().map_err(|post| post.error)?;
        }
        Ok(())
    }

    /// Records completions and arrived messages, and reposts the receives; returns whether there
    /// were any.
    pub(super) fn poll(&mut self, room: &mut PollRoom) -> Result<bool, String> {
        let (last, receives) = self.connection.poll(room)?;
        if let Some(last) = last {
            self.completed = last;
        }
        self.received += receives as u64;
        self.post_receives(receives)
            .map_err(|error| error.to_string())?;
        Ok(last.is_some() || receives > 0)
    }

    /// Requests an event for the next completion.
    pub(super) fn arm(&self) -> Result<(), Error> {
        self.connection.queue.arm(false)
    }

    /// The descriptor that becomes readable when there is an event.
    pub(super) fn event_fd(&self) -> impl AsFd {
        &self.connection.events
    }

    /// Consumes an event.
    pub(super) fn take_event(&self) -> Result<(), Error> {
        self.connection.events.next().map(drop)
    }

    /// Fills the first outgoing bytes with those of `seed`, and clears the incoming ones.
    pub(super) fn prepare(&mut self, seed: u64, bytes: usize) -> Result<(), Error> {
        self.memory.write(0, &pattern(seed, bytes))?;
        self.memory.write(self.half, &vec![0; bytes])
    }

    /// The number of the first incoming bytes that differ from those of `seed`.
    pub(super) fn wrong(&self, seed: u64, bytes: usize) -> Result<u64, Error> {
        let mut seen = vec![0; bytes];
        self.memory.read(self.half, &mut seen)?;
        Ok(differing(seed, &seen))
    }
}

impl From<Verb> for Work {
    fn from(verb: Verb) -> Self {
        match verb {
            Verb::Write => Self::Write,
            Verb::Read => Self::Read,
            Verb::Send => Self::Send,
        }
    }
}
