//! The receiving half.

use std::sync::Arc;

use socket2::Socket;

use super::inbox::{Expected, Inbox};
use super::no_channel;
use crate::{Arrival, Geometry, LinkError, LinkRx};

/// The receiving half of a link over TCP.
pub struct Rx {
    geometry: Geometry,
    channels: Vec<Channel>,
    /// What the peer did that the protocol does not allow: nothing after it can be trusted.
    ended: Option<LinkError>,
}

struct Channel {
    sockets: Vec<(Arc<Socket>, Inbox)>,
    /// The number of the message at the head.
    next: u64,
    /// Whether the message at the head was lent.
    lent: bool,
}

impl Rx {
    pub(super) fn new(sockets: &[Vec<Arc<Socket>>], geometry: Geometry) -> Self {
        let inbox = |socket: &Arc<Socket>| (Arc::clone(socket), Inbox::default());
        let channel = |sockets: &Vec<Arc<Socket>>| Channel {
            sockets: sockets.iter().map(inbox).collect(),
            next: 0,
            lent: false,
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
        if let Some(ended) = &self.ended {
            return Err(ended.clone());
        }
        let channels = self.channels.len();
        let number = channel as u32;
        let Some(channel) = self.channels.get_mut(channel) else {
            return Err(no_channel(channel, channels));
        };
        let expected = Expected {
            sequence: channel.next as u32,
            channel: number,
            slot_bytes: self.geometry.slot_bytes,
            ahead: self.geometry.slots.div_ceil(channel.sockets.len()),
        };
        let head = channel.head();
        let (socket, inbox) = &mut channel.sockets[head];
        match inbox.message(socket, expected) {
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
}

impl Channel {
    fn head(&self) -> usize {
        (self.next % self.sockets.len() as u64) as usize
    }
}
