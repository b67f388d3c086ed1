//! The messages that two ranks exchange over a stream while they connect.

use std::io;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read};
use rustix::net::{SendFlags, send};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use socket2::Socket;

use super::super::{ExchangeError, MAX_BYTES as MAX_PORTS, NoRail};

/// How often a waiting rank checks whether to go on.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The most queue pairs that are tried for a link.
pub(super) const MOST_PAIRS: usize = 1024;
/// The longest text about a problem, in characters.
const MAX_PROBLEM: usize = 4096;
/// The longest message, in bytes: a description of ports, or an offer of that many queue pairs,
/// which is longer than any problem.
const MAX_BYTES: usize = if MAX_PORTS > MAX_OFFER {
    MAX_PORTS
} else {
    MAX_OFFER
};
const MAX_OFFER: usize = MOST_PAIRS * 96;

/// Why two ranks have no link over RDMA. If it [is agreed](Self::is_agreed), they may connect in
/// another way.
#[derive(Debug, thiserror::Error)]
pub enum NoLink {
    /// No port reaches the peer.
    #[error(transparent)]
    Rails(#[from] NoRail),
    /// Something failed at this end.
    #[error("this rank cannot: {0}")]
    Here(String),
    /// Something failed at the peer.
    #[error("the peer cannot: {0}")]
    There(String),
    /// The peer's description of its ports is unusable.
    #[error("the peer's description of its RDMA ports: {0}")]
    Ports(#[from] ExchangeError),
    /// The peer's answer is impossible.
    #[error("the peer answers {0}; run the same version on all ranks")]
    Answer(String),
    /// This rank stopped waiting, and the peer has not been told.
    #[error("given up, since something else has failed meanwhile")]
    Interrupted,
    /// The stream to the peer broke; neither rank can tell what the other does.
    #[error("talking about RDMA with the peer: {0}")]
    Stream(#[from] io::Error),
}

impl NoLink {
    /// Whether both ranks have found that there is no link.
    pub fn is_agreed(&self) -> bool {
        matches!(self, Self::Rails(_) | Self::Here(_) | Self::There(_))
    }
}

/// The addresses of one rank's queue pairs, one for each candidate, and of its slots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Offer {
    /// The address of the slots that the peer writes.
    pub(super) start: u64,
    pub(super) ends: Vec<End>,
}

/// An end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct End {
    pub(super) qp_num: u32,
    /// The number of the first packet that it sends, 24 bits.
    pub(super) psn: u32,
    /// The key of the slots that the peer writes.
    pub(super) rkey: u32,
    /// How many reads it answers at a time.
    pub(super) reads: u8,
}

/// How long a rank waits for its peer.
#[derive(Clone, Copy)]
pub struct Wait<'a> {
    /// The end of the wait.
    pub deadline: Instant,
    /// Checked several times a second; the wait ends when it returns false, because another thread
    /// may find a reason to stop waiting.
    pub go_on: &'a dyn Fn() -> bool,
}

/// The stream to the peer while a link is set up.
pub(super) struct Negotiation<'a> {
    pub(super) stream: &'a Socket,
    pub(super) wait: Wait<'a>,
}

impl Negotiation<'_> {
    /// Sends this rank's value, or why it has none, and receives the peer's. An error if either has
    /// none.
    pub(super) fn exchange<T: Serialize + DeserializeOwned>(
        &self,
        own: Result<T, String>,
    ) -> Result<(T, T), NoLink> {
        let own = own.map_err(|problem| problem.chars().take(MAX_PROBLEM).collect());
        let bytes = serde_json::to_vec(&own).map_err(|error| NoLink::Answer(error.to_string()))?;
        let answer = self.exchange_bytes(&bytes)?;
        let answer: Result<T, String> = serde_json::from_slice(&answer)
            .map_err(|error| NoLink::Answer(format!("what is not understood: {error}")))?;
        match (own, answer) {
            (Ok(own), Ok(peer)) => Ok((own, peer)),
            (Err(problem), _) => Err(NoLink::Here(problem)),
            (_, Err(problem)) => Err(NoLink::There(problem)),
        }
    }

    /// Sends and receives at the same time, so that the ranks cannot deadlock when the kernel's
    /// buffers are full.
    pub(super) fn exchange_bytes(&self, own: &[u8]) -> Result<Vec<u8>, NoLink> {
        self.stream.set_nonblocking(true)?;
        let mut outgoing = (own.len() as u32).to_le_bytes().to_vec();
        outgoing.extend(own);
        let mut outgoing = &outgoing[..];
        let mut incoming = Incoming::default();
        loop {
            if !outgoing.is_empty() {
                let sent = now(send(self.stream, outgoing, SendFlags::NOSIGNAL))?;
                outgoing = &outgoing[sent.unwrap_or(0)..];
            }
            incoming.fill(self.stream)?;
            match (outgoing.is_empty(), incoming.missing()?) {
                (true, 0) => return Ok(incoming.payload),
                (all_sent, missing) => self.until_ready(!all_sent, missing > 0)?,
            }
        }
    }

    /// Waits until the stream is writable or readable, but not longer than [`LOOK_EVERY`].
    fn until_ready(&self, takes: bool, has: bool) -> Result<(), NoLink> {
        let left = self.wait.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::from(io::ErrorKind::TimedOut).into());
        }
        if !(self.wait.go_on)() {
            return Err(NoLink::Interrupted);
        }
        let mut events = PollFlags::empty();
        events.set(PollFlags::OUT, takes);
        events.set(PollFlags::IN, has);
        let limit = Timespec::try_from(left.min(LOOK_EVERY)).ok();
        let polled = poll(&mut [PollFd::new(self.stream, events)], limit.as_ref());
        match polled {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(io::Error::from(error).into()),
        }
    }
}

/// The result of a call on a non-blocking stream; `None` if it would block.
fn now(done: Result<usize, Errno>) -> io::Result<Option<usize>> {
    match done {
        Ok(count) => Ok(Some(count)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The part of a peer's message that has arrived: its length, then that many bytes.
#[derive(Default)]
struct Incoming {
    len: Vec<u8>,
    payload: Vec<u8>,
}

impl Incoming {
    /// How many bytes must arrive before the next step of decoding.
    fn missing(&self) -> Result<usize, NoLink> {
        let Ok(len) = self.len[..].try_into() else {
            return Ok(size_of::<u32>() - self.len.len());
        };
        match u32::from_le_bytes(len) as usize {
            len if len > MAX_BYTES => Err(NoLink::Answer(format!("with {len} bytes"))),
            len => Ok(len - self.payload.len()),
        }
    }

    /// Reads what has arrived of this message, and nothing of the next.
    fn fill(&mut self, stream: &Socket) -> Result<(), NoLink> {
        let mut piece = [0; 4096];
        loop {
            let missing = self.missing()?.min(piece.len());
            if missing == 0 {
                return Ok(());
            }
            match now(read(stream, &mut piece[..missing]))? {
                None => return Ok(()),
                Some(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Some(count) if self.len.len() < size_of::<u32>() => {
                    self.len.extend(&piece[..count]);
                }
                Some(count) => self.payload.extend(&piece[..count]),
            }
        }
    }
}

#[cfg(test)]
mod tests;
