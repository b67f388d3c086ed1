//! What two ranks tell each other while they connect, over a stream.

use std::io::{self, Read, Write};
use std::time::Instant;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use socket2::Socket;

use super::super::{ExchangeError, NoRail};

/// The longest message, in bytes.
const MAX_BYTES: usize = 1 << 20;

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

/// The stream to the peer, while both talk about a link.
pub(super) struct Talk<'a> {
    pub(super) stream: &'a Socket,
    pub(super) deadline: Instant,
}

impl Talk<'_> {
    /// Says what this rank has or why it has not, and hears the same of the peer. An error where either
    /// has not.
    pub(super) fn exchange<T: Serialize + DeserializeOwned>(
        &self,
        own: Result<T, String>,
    ) -> Result<(T, T), NoLink> {
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

    /// Both send, then both receive: what is sent is short enough for the kernel to keep.
    pub(super) fn exchange_bytes(&self, own: &[u8]) -> Result<Vec<u8>, NoLink> {
        let mut stream = self.stream;
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(self.left()?))?;
        stream.write_all(&(own.len() as u32).to_le_bytes())?;
        stream.write_all(own)?;
        let mut len = [0; 4];
        self.read(&mut len)?;
        let len = u32::from_le_bytes(len) as usize;
        if len > MAX_BYTES {
            return Err(NoLink::Answer(format!("with {len} bytes")));
        }
        let mut bytes = vec![0; len];
        self.read(&mut bytes)?;
        Ok(bytes)
    }

    fn read(&self, mut into: &mut [u8]) -> io::Result<()> {
        let mut stream = self.stream;
        while !into.is_empty() {
            stream.set_read_timeout(Some(self.left()?))?;
            match stream.read(into) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => into = &mut into[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn left(&self) -> io::Result<std::time::Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(left)
    }
}
