//! The sending half.

use std::slice;
use std::sync::Arc;

use super::LEND_LEAST;
use super::doorbell::Doorbell;
use super::layout::{Direction, Side, cells};
use super::reach::Beacon;
use super::ring::{self, Cell, Producer};
use super::segment::{Header, Place, Ring, Segment};
use crate::{LEND_MOST, Lending, Lends, LinkError, LinkTx};

/// The sending half of a link through shared memory.
///
/// Dropping it tells the peer, which sees [`LinkError::Closed`] once it has read what was sent.
#[derive(Debug)]
pub struct Tx {
    segment: Arc<Segment>,
    direction: Direction,
    slot_bytes: usize,
    channels: Box<[Channel]>,
    pub(super) doorbell: Doorbell,
    /// Lit where messages may be lent.
    beacon: Option<Beacon>,
}

#[derive(Debug)]
struct Channel {
    ring: Ring,
    producer: Producer,
    /// The cell that is lent, and for how many bytes.
    lent: Option<(Cell, usize)>,
}

impl Tx {
    pub(super) fn new(segment: &Arc<Segment>, direction: Direction) -> Self {
        let geometry = segment.geometry();
        let channel = |index| {
            let ring = Ring::new(segment, direction, index);
            // SAFETY: this is the sender's side, and it begins here.
            unsafe { ring.warm_up() };
            Channel {
                ring,
                producer: Producer::new(cells(geometry)),
                lent: None,
            }
        };
        Self {
            segment: Arc::clone(segment),
            direction,
            slot_bytes: geometry.slot_bytes,
            channels: (0..geometry.channels).map(channel).collect(),
            doorbell: Doorbell::new(segment, direction),
            beacon: None,
        }
    }

    /// Lends long payloads, if the peer can read this process's memory. Processes of the same user
    /// are allowed to, where the kernel would else allow it to this one's parents alone.
    pub fn allow_lending(&mut self) {
        self.beacon = Beacon::light(self.segment.reach(self.direction));
    }

    /// Whether the peer reads this process's memory.
    fn is_read(&self) -> bool {
        self.beacon.is_some() && self.segment.reach(self.direction).is_readable()
    }
}

impl LinkTx for Tx {
    #[inline]
    fn reserve(&mut self, channel: usize, len: usize) -> Result<Option<&mut [u8]>, LinkError> {
        let slot_bytes = self.slot_bytes;
        if len > slot_bytes {
            return Err(too_long(len, slot_bytes));
        }
        let Channel {
            ring,
            producer,
            lent,
        } = pick(&mut self.channels, channel)?;
        let Some(cell) = producer.poll(ring, ring.depth(len))? else {
            return Ok(None);
        };
        *lent = Some((cell, len));
        // SAFETY: the payload lies within the cell or its slot, `len` being at most `slot_bytes`. The cell is
        // this side's until it is published, which takes `&mut self`, so the slice is the only
        // way to it in this process; a peer that writes there breaks the protocol, and harms no
        // more than the bytes.
        Ok(Some(unsafe {
            slice::from_raw_parts_mut(ring.payload(cell, len), len)
        }))
    }

    #[inline]
    fn commit(&mut self, channel: usize, len: usize, tag: u64) -> Result<(), LinkError> {
        let Channel {
            ring,
            producer,
            lent,
        } = pick(&mut self.channels, channel)?;
        match *lent {
            Some((cell, reserved)) if reserved == len => {
                *lent = None;
                let header = Header {
                    len: len as u32,
                    tag,
                    place: Place::Slot,
                };
                // SAFETY: the cell was lent and not yet published: it is this side's.
                unsafe { ring.write_header(cell, header) };
                producer.publish(ring);
                self.doorbell.knock();
                Ok(())
            }
            other => Err(not_reserved(
                channel,
                len,
                other.map(|(_, reserved)| reserved),
            )),
        }
    }

    fn lends(&self, _start: *const u8, _bytes: usize) -> Lends {
        if self.is_read() {
            Lends::Anything
        } else {
            Lends::Nothing
        }
    }

    fn lend(&mut self, channel: usize, payload: &[u8], tag: u64) -> Result<Lending, LinkError> {
        if !(LEND_LEAST..=LEND_MOST).contains(&payload.len()) || !self.is_read() {
            return Ok(Lending::Unable);
        }
        let Channel {
            ring,
            producer,
            lent,
        } = pick(&mut self.channels, channel)?;
        if let Some((_, reserved)) = lent {
            return Err(reserved_before(channel, *reserved));
        }
        let Some(cell) = producer.poll(ring, ring.depth(0))? else {
            return Ok(Lending::NotYet);
        };
        let header = Header {
            len: payload.len() as u32,
            tag,
            place: Place::Lent(payload.as_ptr() as u64),
        };
        // SAFETY: the cell is free and not yet published: it is this side's.
        unsafe { ring.write_header(cell, header) };
        let number = producer.publish(ring);
        self.doorbell.knock();
        Ok(Lending::Lent(number))
    }

    fn has_returned(&mut self, channel: usize, loan: u64) -> Result<bool, LinkError> {
        let Channel { ring, .. } = pick(&mut self.channels, channel)?;
        ring::has_returned(ring, loan)
    }

    fn withdraw(&mut self) {
        ring::withdraw(self.segment.closed(self.direction, Side::Sender));
    }

    #[inline]
    fn holds_back(&self, _channel: usize) -> bool {
        false
    }

    #[inline]
    fn flush(&mut self) -> Result<bool, LinkError> {
        Ok(true)
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        ring::close(self.segment.closed(self.direction, Side::Sender));
        self.doorbell.knock();
    }
}

#[inline]
fn pick(channels: &mut [Channel], channel: usize) -> Result<&mut Channel, LinkError> {
    let count = channels.len();
    channels
        .get_mut(channel)
        .ok_or_else(|| no_channel(channel, count))
}

#[cold]
fn too_long(len: usize, slot_bytes: usize) -> LinkError {
    LinkError::Misuse(format!("a message of {len} bytes in slots of {slot_bytes}"))
}

#[cold]
fn no_channel(channel: usize, channels: usize) -> LinkError {
    LinkError::Misuse(format!("channel {channel} of {channels}"))
}

#[cold]
fn reserved_before(channel: usize, reserved: usize) -> LinkError {
    LinkError::Misuse(format!(
        "lending on channel {channel} after a reservation of {reserved} bytes"
    ))
}

#[cold]
fn not_reserved(channel: usize, len: usize, reserved: Option<usize>) -> LinkError {
    LinkError::Misuse(match reserved {
        Some(reserved) => {
            format!("commit of {len} bytes on channel {channel} after a reservation of {reserved}")
        }
        None => format!("commit of {len} bytes on channel {channel} without a reservation"),
    })
}
