//! The receiving half.

use std::slice;
use std::sync::Arc;

use super::layout::{Direction, Side};
use super::ring::{self, Consumer, Slot};
use super::segment::{Ring, Segment};
use crate::{Arrival, LinkError, LinkRx};

/// The receiving half of a link through shared memory.
///
/// Dropping it tells the peer, which sees [`LinkError::Closed`] once it has no free slots left.
#[derive(Debug)]
pub struct Rx {
    segment: Arc<Segment>,
    direction: Direction,
    slot_bytes: usize,
    channels: Box<[Channel]>,
}

#[derive(Debug)]
struct Channel {
    ring: Ring,
    consumer: Consumer,
    /// The message last peeked: its slot, its length (checked) and its tag.
    held: Option<(Slot, usize, u64)>,
}

impl Rx {
    pub(super) fn new(segment: &Arc<Segment>, direction: Direction) -> Self {
        let geometry = segment.geometry();
        let channel = |index| Channel {
            ring: Ring::new(segment, direction, index),
            consumer: Consumer::new(geometry.slots),
            held: None,
        };
        Self {
            segment: Arc::clone(segment),
            direction,
            slot_bytes: geometry.slot_bytes,
            channels: (0..geometry.channels).map(channel).collect(),
        }
    }
}

impl LinkRx for Rx {
    #[inline]
    fn peek(&mut self, channel: usize) -> Result<Option<Arrival<'_>>, LinkError> {
        let channels = self.channels.len();
        let Some(Channel {
            ring,
            consumer,
            held,
        }) = self.channels.get_mut(channel)
        else {
            return Err(no_channel(channel, channels));
        };
        let (slot, len, tag) = if let Some(held) = *held {
            held
        } else {
            let Some(slot) = consumer.poll(ring)? else {
                return Ok(None);
            };
            // SAFETY: the consumer found the slot filled: it is this side's until released.
            let (len, tag) = unsafe { ring.read_header(slot) };
            let len = len as usize;
            if len > self.slot_bytes {
                return Err(too_long(channel, len, self.slot_bytes));
            }
            *held.insert((slot, len, tag))
        };
        // SAFETY: the payload lies within the slot, `len` being at most `slot_bytes`. The slot is
        // this side's until it is released, which takes `&mut self`, so nothing in this process
        // writes to it; a peer that does breaks the protocol, and harms no more than the bytes.
        let payload = unsafe { slice::from_raw_parts(ring.payload(slot, len), len) };
        Ok(Some(Arrival { tag, payload }))
    }

    #[inline]
    fn release(&mut self, channel: usize) {
        if let Some(Channel {
            ring,
            consumer,
            held,
        }) = self.channels.get_mut(channel)
            && held.take().is_some()
        {
            consumer.release(ring);
        }
    }
}

impl Drop for Rx {
    fn drop(&mut self) {
        ring::close(self.segment.closed(self.direction, Side::Receiver));
    }
}

#[cold]
fn no_channel(channel: usize, channels: usize) -> LinkError {
    LinkError::Misuse(format!("channel {channel} of {channels}"))
}

#[cold]
fn too_long(channel: usize, len: usize, slot_bytes: usize) -> LinkError {
    LinkError::Protocol(format!(
        "the peer sent {len} bytes on channel {channel}, in slots of {slot_bytes}"
    ))
}
