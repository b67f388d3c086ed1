//! The receiving half of a link over TCP.

use std::sync::Arc;

use rustix::event::PollFlags;
use socket2::Socket;
use spark_ccl_fork::Unshared;

use super::inbox::{Expected, Inbox};
use super::{SLOTLESS_BYTES, no_channel};
use crate::{Arrival, Direct, Geometry, LinkError, LinkRx, Wait};

/// The receiving half of a link over TCP.
pub struct Rx {
    geometry: Geometry,
    channels: Vec<Channel>,
    /// Set when the peer violated the protocol: nothing after that can be trusted.
    ended: Option<LinkError>,
}

struct Channel {
    sockets: Vec<(Arc<Unshared<Socket>>, Inbox)>,
    /// The number of the next message.
    next: u64,
    /// Whether the message at the head was returned to the caller.
    lent: bool,
    /// Whether the next message was looked for since the last [`arm`](LinkRx::arm) and was not there.
    missed: bool,
}

impl Rx {
    pub(super) fn new(sockets: &[Vec<Arc<Unshared<Socket>>>], geometry: Geometry) -> Self {
        let inbox = |socket: &Arc<Unshared<Socket>>| (Arc::clone(socket), Inbox::default());
        let channel = |sockets: &Vec<Arc<Unshared<Socket>>>| Channel {
            sockets: sockets.iter().map(inbox).collect(),
            next: 0,
            lent: false,
            missed: false,
        };
        Self {
            geometry,
            channels: sockets.iter().map(channel).collect(),
            ended: None,
        }
    }
}

impl LinkRx for Rx {
    fn peek(&mut self, channel: usize) -> Result<Option<Arrival<'_>>, LinkError> {
        let (channel, expected) = usable(
            self.ended.as_ref(),
            &mut self.channels,
            self.geometry,
            channel,
        )?;
        let head = channel.head();
        let (socket, inbox) = &mut channel.sockets[head];
        let message = inbox.message(socket, expected);
        channel.missed = matches!(message, Ok(None));
        match message {
            Ok(message) => {
                channel.lent = message.is_some();
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

    fn receive_into(
        &mut self,
        channel: usize,
        payload: &mut [u8],
        tag: u64,
    ) -> Result<Direct, LinkError> {
        let (channel, expected) = usable(
            self.ended.as_ref(),
            &mut self.channels,
            self.geometry,
            channel,
        )?;
        if payload.len() < SLOTLESS_BYTES {
            return Ok(Direct::Unable);
        }
        let head = channel.head();
        let (socket, inbox) = &mut channel.sockets[head];
        let received = inbox.message_into(socket, expected, payload, tag);
        channel.missed = matches!(received, Ok(Direct::NotYet));
        match &received {
            Ok(Direct::Done) => {
                channel.lent = false;
                channel.next += 1;
            }
            Err(error @ LinkError::Protocol(_)) => self.ended = Some(error.clone()),
            _ => {}
        }
        received
    }

    fn release(&mut self, channel: usize) {
        let Some(channel) = self.channels.get_mut(channel) else {
            return;
        };
        if std::mem::take(&mut channel.lent) {
            let head = channel.head();
            channel.sockets[head].1.release();
            channel.next += 1;
        }
    }

    fn arm(&mut self, _wait: &mut Wait) {
        for channel in &mut self.channels {
            channel.missed = false;
        }
    }

    /// Adds only sockets that are being read: messages for later operations would end every wait at once.
    fn watch(&self, wait: &mut Wait) {
        for channel in self.channels.iter().filter(|channel| channel.missed) {
            let socket = Arc::clone(&channel.sockets[channel.head()].0);
            wait.add(socket, PollFlags::IN);
        }
    }
}

impl Channel {
    fn head(&self) -> usize {
        (self.next % self.sockets.len() as u64) as usize
    }
}

/// A channel's state, and what its next header must contain; an error if the link has ended.
fn usable<'a>(
    ended: Option<&LinkError>,
    channels: &'a mut [Channel],
    geometry: Geometry,
    number: usize,
) -> Result<(&'a mut Channel, Expected), LinkError> {
    if let Some(ended) = ended {
        return Err(ended.clone());
    }
    let count = channels.len();
    let channel = channels
        .get_mut(number)
        .ok_or_else(|| no_channel(number, count))?;
    let expected = Expected {
        sequence: channel.next as u32,
        channel: number as u32,
        slot_bytes: geometry.slot_bytes,
    };
    Ok((channel, expected))
}
