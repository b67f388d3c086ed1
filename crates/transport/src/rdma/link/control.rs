//! The control stream of a link: the stream over which both ends set it up, used afterwards for
//! messages about its rails.

use std::io::{ErrorKind, Read};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{SendFlags, send};
use socket2::Socket;
use spark_ccl_fork::Unshared;

use super::message::ControlMessage;
use crate::{Geometry, LinkError};

/// How long the peer's host may leave data unacknowledged before TCP counts it as unreachable.
const UNREACHABLE: Duration = Duration::from_secs(5);

/// The control stream of a link.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) stream: Arc<Unshared<Socket>>,
    rails: usize,
    geometry: Geometry,
    /// The part of the peer's next message that has arrived.
    heard: Vec<u8>,
    /// Bytes that the kernel has not accepted yet.
    unsent: Vec<u8>,
    /// Nothing more is sent or received.
    pub(super) is_closed: bool,
}

impl Control {
    pub(super) fn new(
        stream: Unshared<Socket>,
        rails: usize,
        geometry: Geometry,
    ) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        // Only TCP has this option; other sockets refuse it. The timeout ends the stream if the
        // peer's kernel does not answer, but not if the peer is only busy.
        let _ = stream.set_tcp_user_timeout(Some(UNREACHABLE));
        Ok(Self {
            stream: Arc::new(stream),
            rails,
            geometry,
            heard: Vec::new(),
            unsent: Vec::new(),
            is_closed: false,
        })
    }

    pub(super) fn say(&mut self, message: &ControlMessage) {
        self.unsent.extend(message.encode());
        self.flush();
    }

    /// Whether the kernel has not accepted all that was sent.
    pub(super) fn holds_back(&self) -> bool {
        !self.unsent.is_empty()
    }

    pub(super) fn flush(&mut self) {
        if self.is_closed {
            self.unsent.clear();
        }
        while !self.unsent.is_empty() {
            match send(&*self.stream, &self.unsent, SendFlags::NOSIGNAL) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock => return,
                    // Earlier messages of the peer may still be readable.
                    _ => self.unsent.clear(),
                },
            }
        }
    }

    /// The peer's next message, if there is one.
    pub(super) fn hear(&mut self) -> Result<Option<ControlMessage>, LinkError> {
        if !self.read(1) {
            return Ok(None);
        }
        let len = ControlMessage::len(self.heard[0], self.geometry).ok_or_else(no_sense)?;
        if !self.read(len) {
            return Ok(None);
        }
        let bytes = std::mem::take(&mut self.heard);
        let message = ControlMessage::decode(&bytes, self.rails, self.geometry);
        message.map(Some).ok_or_else(no_sense)
    }

    /// Whether the first `len` bytes of the next message have arrived.
    fn read(&mut self, len: usize) -> bool {
        while self.heard.len() < len && !self.is_closed {
            let known = self.heard.len();
            self.heard.resize(len, 0);
            let read = (&**self.stream).read(&mut self.heard[known..]);
            self.heard.truncate(known + *read.as_ref().unwrap_or(&0));
            match read.map_err(|error| error.kind()) {
                Ok(0) => self.is_closed = true,
                Ok(_) | Err(ErrorKind::Interrupted) => {}
                Err(ErrorKind::WouldBlock) => return false,
                Err(_) => self.is_closed = true,
            }
        }
        self.heard.len() >= len
    }
}

fn no_sense() -> LinkError {
    LinkError::Protocol("what the peer says about the link's rails makes no sense".to_owned())
}

#[cfg(test)]
mod tests;
