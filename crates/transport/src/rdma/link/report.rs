//! What an end of a link says when a rail has failed, and the stream that carries it.

use std::io::{ErrorKind, Read};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{SendFlags, send};
use socket2::Socket;

use crate::{Geometry, LinkError};

/// The peer's host is not reached over TCP, if it acknowledges nothing for so long.
const UNREACHABLE: Duration = Duration::from_secs(5);

/// A rail has failed at the end that says so: from now on, nothing that comes by it is taken there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) rail: usize,
    /// Of each channel, what was sent and what has arrived, by any rail.
    pub(super) channels: Vec<Progress>,
}

/// How far a channel has come at one end; messages are numbered from 1 in either direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Progress {
    /// Messages sent.
    pub(super) sent: u64,
    /// Messages read.
    pub(super) read: u64,
    /// Of the messages after those, as many as there are slots: which have arrived.
    pub(super) arrived: Vec<bool>,
}

impl Report {
    /// The bytes of every report about such a link.
    fn len(geometry: Geometry) -> usize {
        4 + geometry.channels * (16 + geometry.slots.div_ceil(8))
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = (self.rail as u32).to_le_bytes().to_vec();
        for channel in &self.channels {
            bytes.extend(channel.sent.to_le_bytes());
            bytes.extend(channel.read.to_le_bytes());
            bytes.extend(channel.arrived.chunks(8).map(|eight| {
                let bits = eight.iter().enumerate();
                bits.fold(0, |byte, (bit, arrived)| byte | u8::from(*arrived) << bit)
            }));
        }
        bytes
    }

    /// `None`: nothing that a peer of this version says about such a link.
    fn decode(bytes: &[u8], rails: usize, geometry: Geometry) -> Option<Self> {
        if bytes.len() != Self::len(geometry) {
            return None;
        }
        let (rail, channels) = bytes.split_first_chunk()?;
        let rail = u32::from_le_bytes(*rail) as usize;
        let channels = channels.chunks_exact(channels.len() / geometry.channels);
        let channels = channels.map(|bytes| Progress::decode(bytes, geometry.slots));
        let report = Self {
            rail,
            channels: channels.collect::<Option<_>>()?,
        };
        (rail < rails).then_some(report)
    }
}

impl Progress {
    fn decode(bytes: &[u8], slots: usize) -> Option<Self> {
        let (sent, bytes) = bytes.split_first_chunk()?;
        let (read, bits) = bytes.split_first_chunk()?;
        let bit = |index: usize| bits[index / 8] >> (index % 8) & 1 == 1;
        if (slots..bits.len() * 8).any(bit) {
            return None;
        }
        Some(Self {
            sent: u64::from_le_bytes(*sent),
            read: u64::from_le_bytes(*read),
            arrived: (0..slots).map(bit).collect(),
        })
    }
}

/// The stream over which both ends had agreed on the link, now for reports.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) stream: Arc<Socket>,
    rails: usize,
    geometry: Geometry,
    /// A report of the peer, of which so many bytes are there.
    heard: (Vec<u8>, usize),
    /// What the kernel has not taken yet.
    unsent: Vec<u8>,
    /// Nothing more is said or heard.
    pub(super) is_closed: bool,
}

impl Control {
    pub(super) fn new(stream: Socket, rails: usize, geometry: Geometry) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        // Only TCP knows it. What no kernel acknowledges will not be confirmed; a peer that is busy may
        // take its time.
        let _ = stream.set_tcp_user_timeout(Some(UNREACHABLE));
        Ok(Self {
            stream: Arc::new(stream),
            rails,
            geometry,
            heard: (vec![0; Report::len(geometry)], 0),
            unsent: Vec::new(),
            is_closed: false,
        })
    }

    pub(super) fn say(&mut self, report: &Report) {
        self.unsent.extend(report.encode());
        self.flush();
    }

    /// Whether the kernel has not taken everything that was said.
    pub(super) fn holds_back(&self) -> bool {
        !self.unsent.is_empty()
    }

    pub(super) fn flush(&mut self) {
        while !self.unsent.is_empty() && !self.is_closed {
            match send(&*self.stream, &self.unsent, SendFlags::NOSIGNAL) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock => return,
                    // What the peer has said before may still be there.
                    _ => self.unsent.clear(),
                },
            }
        }
    }

    /// The peer's next report, if there is one.
    pub(super) fn hear(&mut self) -> Result<Option<Report>, LinkError> {
        let (bytes, count) = &mut self.heard;
        while *count < bytes.len() {
            if self.is_closed {
                return Ok(None);
            }
            match (&*self.stream).read(&mut bytes[*count..]) {
                Ok(0) => self.is_closed = true,
                Ok(more) => *count += more,
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock => return Ok(None),
                    _ => self.is_closed = true,
                },
            }
        }
        *count = 0;
        let report = Report::decode(bytes, self.rails, self.geometry);
        report.map(Some).ok_or_else(|| {
            LinkError::Protocol("the peer's report about a failed rail makes no sense".to_owned())
        })
    }
}

#[cfg(test)]
mod tests;
