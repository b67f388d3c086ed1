//! What two ranks tell each other while they connect, over a stream.

use std::io;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read};
use rustix::net::{SendFlags, send};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use socket2::Socket;

use super::super::{ExchangeError, NoRail, exchange};

/// How often a rank that waits asks whether to go on.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The most queue pairs that are tried for a link.
pub(super) const MOST_LANES: usize = 1024;
/// The longest text about a problem, in characters.
const MAX_PROBLEM: usize = 4096;
/// The longest message, in bytes: a description of ports, or an offer of that many queue pairs, which is longer
/// than any problem.
const MAX_BYTES: usize = if exchange::MAX_BYTES > MAX_OFFER {
    exchange::MAX_BYTES
} else {
    MAX_OFFER
};
const MAX_OFFER: usize = MOST_LANES * 96;

/// Why two ranks have no link over RDMA. Both know it then, and may connect in another way.
#[derive(Debug, thiserror::Error)]
pub enum NoLink {
    /// No ports lead to the peer.
    #[error(transparent)]
    Rails(#[from] NoRail),
    /// Something failed here.
    #[error("this rank cannot: {0}")]
    Here(String),
    /// Something failed at the peer.
    #[error("the peer cannot: {0}")]
    There(String),
    /// The peer sent something that no rank of this version sends.
    #[error("the peer's description of its RDMA ports: {0}")]
    Ports(#[from] ExchangeError),
    /// The peer says something that cannot be.
    #[error("the peer answers {0}; run the same version on all ranks")]
    Answer(String),
    /// There was no reason any more to wait for the peer, which does not know that.
    #[error("given up, since something else has failed meanwhile")]
    Interrupted,
    /// The stream to the peer broke; neither rank knows what the other does.
    #[error("talking about RDMA with the peer: {0}")]
    Stream(#[from] io::Error),
}

impl NoLink {
    /// Whether both ranks know that there is no link.
    pub fn is_agreed(&self) -> bool {
        matches!(self, Self::Rails(_) | Self::Here(_) | Self::There(_))
    }
}

/// What one rank's queue pairs and slots are called, one for each that may become a rail's.
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
    /// No longer than until then.
    pub deadline: Instant,
    /// And only while this says so, which is asked several times a second: a reason may turn up elsewhere to
    /// wait no more.
    pub go_on: &'a dyn Fn() -> bool,
}

/// The stream to the peer, while both talk about a link.
pub(super) struct Talk<'a> {
    pub(super) stream: &'a Socket,
    pub(super) wait: Wait<'a>,
}

impl Talk<'_> {
    /// Says what this rank has or why it has not, and hears the same of the peer. An error where either
    /// has not.
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

    /// Both send and receive at once: neither waits for the other to take what the kernel does not keep.
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

    /// Waits until the stream takes or has something, or a little.
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

/// What a call on a stream that does not block has done; none where it would block.
fn now(done: Result<usize, Errno>) -> io::Result<Option<usize>> {
    match done {
        Ok(count) => Ok(Some(count)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A message of the peer, as far as it is there: its length, then as many bytes.
#[derive(Default)]
struct Incoming {
    len: Vec<u8>,
    payload: Vec<u8>,
}

impl Incoming {
    /// So many bytes must come before more is known.
    fn missing(&self) -> Result<usize, NoLink> {
        let Ok(len) = self.len[..].try_into() else {
            return Ok(size_of::<u32>() - self.len.len());
        };
        match u32::from_le_bytes(len) as usize {
            len if len > MAX_BYTES => Err(NoLink::Answer(format!("with {len} bytes"))),
            len => Ok(len - self.payload.len()),
        }
    }

    /// Takes what is there of this message, and nothing of the next.
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
