//! The receiving half of a link over TCP: whose socket is next. The bytes are read in `inbox.rs`.

use std::sync::Arc;

use rustix::event::PollFlags;
use socket2::Socket;
use spark_ccl_fork::Unshared;

use super::SLOTLESS_BYTES;
use super::inbox::{Expected, Inbox};
use crate::{Arrival, Direct, Geometry, LinkError, LinkRx, Wait};

/// The receiving half of a link over TCP.
pub struct Rx {
    geometry: Geometry,
    sockets: Vec<(Arc<Unshared<Socket>>, Inbox)>,
    /// The number of the next message.
    next: u64,
    /// Whether `peek` has handed out the message at the head, and `release` was not called yet.
    is_peeked: bool,
    /// Whether the next message was looked for since the last [`arm`](LinkRx::arm) and was not there.
    missed: bool,
    /// Set when the peer violated the protocol: nothing after that can be trusted.
    ended: Option<LinkError>,
}

impl Rx {
    pub(super) fn new(sockets: &[Arc<Unshared<Socket>>], geometry: Geometry) -> Self {
        let inbox = |socket: &Arc<Unshared<Socket>>| (Arc::clone(socket), Inbox::default());
        Self {
            geometry,
            sockets: sockets.iter().map(inbox).collect(),
            next: 0,
            is_peeked: false,
            missed: false,
            ended: None,
        }
    }

    fn head(&self) -> usize {
        (self.next % self.sockets.len() as u64) as usize
    }

    /// What the next header must contain; an error if the link has ended.
    fn expected(&self) -> Result<Expected, LinkError> {
        if let Some(ended) = &self.ended {
            return Err(ended.clone());
        }
        Ok(Expected {
            sequence: self.next,
            slot_bytes: self.geometry.slot_bytes,
        })
    }
}

impl LinkRx for Rx {
    fn peek(&mut self) -> Result<Option<Arrival<'_>>, LinkError> {
        let expected = self.expected()?;
        let head = self.head();
        let (socket, inbox) = &mut self.sockets[head];
        let message = inbox.message(socket, expected);
        self.missed = matches!(message, Ok(None));
        match message {
            Ok(message) => {
                self.is_peeked = message.is_some();
                Ok(message.map(|(tag, payload)| Arrival { tag, payload }))
            }
            Err(error) => {
                if matches!(error, LinkError::Protocol(_)) {
                    self.ended = Some(error.clone());
                }
                Err(error)
            }
        }
    }

    fn receive_into(&mut self, payload: &mut [u8], tag: u64) -> Result<Direct, LinkError> {
        let expected = self.expected()?;
        if payload.len() < SLOTLESS_BYTES {
            return Ok(Direct::Unable);
        }
        let head = self.head();
        let (socket, inbox) = &mut self.sockets[head];
        let received = inbox.message_into(socket, expected, payload, tag);
        self.missed = matches!(received, Ok(Direct::NotYet));
        match &received {
            Ok(Direct::Done) => {
                self.is_peeked = false;
                self.next += 1;
            }
            Err(error @ LinkError::Protocol(_)) => self.ended = Some(error.clone()),
            _ => {}
        }
        received
    }

    fn release(&mut self) {
        if std::mem::take(&mut self.is_peeked) {
            let head = self.head();
            self.sockets[head].1.release();
            self.next += 1;
        }
    }

    fn arm(&mut self, _wait: &mut Wait) {
        self.missed = false;
    }

    /// Adds only a socket that is being read: messages for later operations would end every wait at once.
    fn watch(&self, wait: &mut Wait) {
        if self.missed {
            wait.add(Arc::clone(&self.sockets[self.head()].0) as _, PollFlags::IN);
        }
    }
}
