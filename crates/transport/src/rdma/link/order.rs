//! Which messages are on their way, here and there: the accounts of a link, without the device.

use super::immediate::{Immediate, distance};
use super::slots::HEADER_BYTES;
use crate::{Geometry, LinkError};

/// The accounts of a link's end.
#[derive(Debug)]
pub(super) struct Order {
    channels: Vec<Channel>,
    slot_bytes: usize,
    /// Rails by which the peer's sender may still send.
    pub(super) senders: usize,
    /// The peer takes nothing more.
    pub(super) receiver_gone: bool,
}

/// Those of a channel; messages are numbered from 1 in either direction.
#[derive(Debug)]
struct Channel {
    /// Messages sent.
    sent: u64,
    /// Of these, those whose slots the peer has given back.
    returned: u64,
    /// By slot: what carries the message in it, and its bytes.
    carried: Vec<Load>,
    /// Messages read.
    read: u64,
    /// By slot: the payload bytes of the message in it that has arrived and is not read.
    arrived: Vec<Option<u32>>,
}

/// Bytes on their way by a rail.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) rail: usize,
    pub(super) bytes: u64,
}

impl Order {
    pub(super) fn new(geometry: Geometry, rails: usize) -> Self {
        let channel = || Channel {
            sent: 0,
            returned: 0,
            carried: vec![Load::default(); geometry.slots],
            read: 0,
            arrived: vec![None; geometry.slots],
        };
        Self {
            channels: (0..geometry.channels).map(|_| channel()).collect(),
            slot_bytes: geometry.slot_bytes,
            senders: rails,
            receiver_gone: false,
        }
    }

    /// The number of the next message, if its slot is free.
    pub(super) fn next_to_send(&self, channel: usize) -> Option<u64> {
        let Channel { sent, returned, .. } = self.channels[channel];
        let free = sent - returned < self.channels[channel].carried.len() as u64;
        free.then_some(sent + 1)
    }

    /// The next message is on its way.
    pub(super) fn note_sent(&mut self, channel: usize, load: Load) {
        let channel = &mut self.channels[channel];
        channel.sent += 1;
        let slot = channel.slot(channel.sent);
        channel.carried[slot] = load;
    }

    /// The number and payload bytes of the next message, if it has arrived.
    pub(super) fn next_to_read(&self, channel: usize) -> Option<(u64, usize)> {
        let channel = &self.channels[channel];
        let number = channel.read + 1;
        let bytes = channel.arrived[channel.slot(number)]?;
        Some((number, bytes as usize))
    }

    /// The next message is read; its number, unless there was none.
    pub(super) fn note_read(&mut self, channel: usize) -> Option<u32> {
        let channel = &mut self.channels[channel];
        let slot = channel.slot(channel.read + 1);
        channel.arrived[slot].take()?;
        channel.read += 1;
        Some(channel.read as u32)
    }

    /// Something has arrived: `bytes` with a number. What is not on its way any more is passed on.
    pub(super) fn note(
        &mut self,
        said: Immediate,
        bytes: u32,
        mut returned: impl FnMut(Load),
    ) -> Result<(), LinkError> {
        match said {
            Immediate::Hello => {}
            Immediate::SenderGone => self.senders = self.senders.saturating_sub(1),
            Immediate::ReceiverGone => self.receiver_gone = true,
            Immediate::Message { channel, number } => {
                let most = (HEADER_BYTES + self.slot_bytes) as u32;
                let fits = (HEADER_BYTES as u32..=most).contains(&bytes);
                let taken = fits && self.channel(channel)?.arrive(number, bytes);
                if !taken {
                    return Err(LinkError::Protocol(format!(
                        "message {number} of {bytes} bytes on channel {channel} has no place here"
                    )));
                }
            }
            Immediate::Released { channel, number } => {
                let slots = self.channel(channel)?;
                let ahead = distance(number, slots.returned);
                // Numbers of several rails may come in any order.
                if ahead > (slots.sent - slots.returned) as i64 {
                    return Err(LinkError::Protocol(format!(
                        "of {} messages on channel {channel}, the peer says it has read {ahead} more \
                         than {}",
                        slots.sent, slots.returned
                    )));
                }
                for _ in 0..ahead {
                    slots.returned += 1;
                    returned(slots.carried[slots.slot(slots.returned)]);
                }
            }
        }
        Ok(())
    }

    fn channel(&mut self, channel: usize) -> Result<&mut Channel, LinkError> {
        let channels = self.channels.len();
        self.channels.get_mut(channel).ok_or_else(|| {
            LinkError::Protocol(format!(
                "the peer names channel {channel}, and there are {channels}"
            ))
        })
    }
}

impl Channel {
    fn slot(&self, number: u64) -> usize {
        (number % self.arrived.len() as u64) as usize
    }

    /// Whether the message belongs into a slot that is free.
    fn arrive(&mut self, number: u32, bytes: u32) -> bool {
        let ahead = distance(number, self.read);
        if !(1..=self.arrived.len() as i64).contains(&ahead) {
            return false;
        }
        let slot = self.slot(self.read + ahead as u64);
        let payload = bytes - HEADER_BYTES as u32;
        self.arrived[slot].replace(payload).is_none()
    }
}

#[cfg(test)]
mod tests;
