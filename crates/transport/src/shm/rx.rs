//! The receiving half.

use std::slice;
use std::sync::Arc;

use super::doorbell::Doorbell;
use super::layout::{Direction, Side, cells};
use super::reach::{self, Reach};
use super::ring::{self, Cell, Consumer};
use super::segment::{Header, Place, Ring, Segment};
use crate::{Arrival, Borrowing, LEND_MOST, LinkError, LinkRx, Wait};

/// Once a message is as long, it is worth knowing whether messages could be lent.
const PROBE_BYTES: usize = 8 << 10;

/// The receiving half of a link through shared memory.
///
/// Dropping it tells the peer, which sees [`LinkError::Closed`] once it has no free cells left.
#[derive(Debug)]
pub struct Rx {
    segment: Arc<Segment>,
    direction: Direction,
    slot_bytes: usize,
    channels: Box<[Channel]>,
    pub(super) doorbell: Doorbell,
    lender: Lender,
}

#[derive(Debug)]
struct Channel {
    ring: Ring,
    consumer: Consumer,
    /// The message last looked at, with its length checked.
    held: Option<Held>,
    /// Room for lent messages that are to be peeked at.
    copy: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    cell: Cell,
    len: usize,
    tag: u64,
    place: Place,
    /// Bytes of a lent payload that were received.
    received: usize,
    /// Whether the payload is in `copy`.
    is_copied: bool,
}

/// What is known of reading the peer's memory.
#[derive(Debug, Clone, Copy)]
enum Lender {
    /// Nothing, and it is to be found out when there is use for it.
    Unknown,
    Reachable(Reach),
    Unreachable,
}

impl Rx {
    pub(super) fn new(segment: &Arc<Segment>, direction: Direction) -> Self {
        let geometry = segment.geometry();
        let channel = |index| Channel {
            ring: Ring::new(segment, direction, index),
            consumer: Consumer::new(cells(geometry)),
            held: None,
            copy: Vec::new(),
        };
        Self {
            segment: Arc::clone(segment),
            direction,
            slot_bytes: geometry.slot_bytes,
            channels: (0..geometry.channels).map(channel).collect(),
            doorbell: Doorbell::new(segment, direction.reverse()),
            lender: Lender::Unknown,
        }
    }

    /// The next message, wherever its payload is.
    #[inline]
    fn look(&mut self, channel: usize) -> Result<Option<Held>, LinkError> {
        let channels = self.channels.len();
        let Some(Channel {
            ring,
            consumer,
            held,
            ..
        }) = self.channels.get_mut(channel)
        else {
            return Err(no_channel(channel, channels));
        };
        if held.is_some() {
            return Ok(*held);
        }
        let Some(cell) = consumer.poll(ring)? else {
            return Ok(None);
        };
        // SAFETY: the consumer found the cell filled: it is this side's until released.
        let Header { len, tag, place } = unsafe { ring.read_header(cell) };
        let len = len as usize;
        let most = match place {
            Place::Slot => self.slot_bytes,
            Place::Lent(_) => LEND_MOST,
        };
        if len > most {
            return Err(too_long(channel, len, most));
        }
        let found = *held.insert(Held {
            cell,
            len,
            tag,
            place,
            received: 0,
            is_copied: false,
        });
        if len >= PROBE_BYTES && matches!(self.lender, Lender::Unknown) {
            self.probe();
        }
        Ok(Some(found))
    }

    #[cold]
    fn probe(&mut self) {
        self.lender = match reach::probe(self.segment.reach(self.direction)) {
            Some(reach) => Lender::Reachable(reach),
            None => Lender::Unreachable,
        };
    }

    /// Reads a lent payload.
    fn read_lent(&self, address: u64, into: &mut [u8]) -> Result<(), LinkError> {
        let Lender::Reachable(reach) = self.lender else {
            return Err(LinkError::Protocol(
                "the peer lent memory that cannot be read".to_owned(),
            ));
        };
        reach.read(address, into)?;
        if ring::was_lent(self.segment.closed(self.direction, Side::Sender)) {
            Ok(())
        } else {
            Err(LinkError::Closed)
        }
    }

    /// Copies a lent payload to where it can be peeked at.
    #[cold]
    fn copy(&mut self, channel: usize, held: Held, address: u64) -> Result<(), LinkError> {
        let mut copy = std::mem::take(&mut self.channels[channel].copy);
        copy.resize(held.len.max(copy.len()), 0);
        let done = self.read_lent(address, &mut copy[..held.len]);
        let channel = &mut self.channels[channel];
        channel.copy = copy;
        channel.held = Some(Held {
            is_copied: done.is_ok(),
            ..held
        });
        done
    }
}

impl LinkRx for Rx {
    #[inline]
    fn peek(&mut self, channel: usize) -> Result<Option<Arrival<'_>>, LinkError> {
        let Some(held) = self.look(channel)? else {
            return Ok(None);
        };
        let Held { cell, len, tag, .. } = held;
        if let Place::Lent(address) = held.place {
            if !held.is_copied {
                self.copy(channel, held, address)?;
            }
            let payload = &self.channels[channel].copy[..len];
            return Ok(Some(Arrival { tag, payload }));
        }
        let payload = self.channels[channel].ring.payload(cell, len);
        // SAFETY: the payload lies within the cell or its slot, `len` being at most `slot_bytes`. The cell is
        // this side's until it is released, which takes `&mut self`, so nothing in this process
        // writes to it; a peer that does breaks the protocol, and harms no more than the bytes.
        let payload = unsafe { slice::from_raw_parts(payload, len) };
        Ok(Some(Arrival { tag, payload }))
    }

    #[inline]
    fn has_news(&mut self, channel: usize) -> bool {
        !matches!(self.look(channel), Ok(None))
    }

    fn borrow(
        &mut self,
        channel: usize,
        room: &mut [u8],
        tag: u64,
    ) -> Result<Borrowing, LinkError> {
        match self.look(channel)? {
            Some(
                held @ Held {
                    place: Place::Lent(address),
                    is_copied: false,
                    ..
                },
            ) if held.tag == tag => {
                let rest = held.len - held.received;
                let count = rest.min(room.len());
                let from = address.wrapping_add(held.received as u64);
                self.read_lent(from, &mut room[..count])?;
                if count == rest {
                    self.release(channel);
                } else {
                    let received = held.received + count;
                    self.channels[channel].held = Some(Held { received, ..held });
                }
                Ok(Borrowing::Done(count))
            }
            None => Ok(Borrowing::NotYet),
            Some(_) => Ok(Borrowing::Unable),
        }
    }

    #[inline]
    fn release(&mut self, channel: usize) {
        if let Some(Channel {
            ring,
            consumer,
            held,
            ..
        }) = self.channels.get_mut(channel)
            && held.take().is_some()
        {
            consumer.release(ring);
            self.doorbell.knock();
        }
    }

    fn arm(&mut self, wait: &mut Wait) {
        self.doorbell.lie_down(wait);
    }

    fn disarm(&mut self) {
        self.doorbell.get_up();
    }
}

impl Drop for Rx {
    fn drop(&mut self) {
        ring::close(self.segment.closed(self.direction, Side::Receiver));
        self.doorbell.knock();
    }
}

#[cold]
fn no_channel(channel: usize, channels: usize) -> LinkError {
    LinkError::Misuse(format!("channel {channel} of {channels}"))
}

#[cold]
fn too_long(channel: usize, len: usize, most: usize) -> LinkError {
    LinkError::Protocol(format!(
        "the peer sent {len} bytes on channel {channel}, where {most} are the most"
    ))
}
