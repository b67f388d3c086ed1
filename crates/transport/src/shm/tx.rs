//! The sending half.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use super::doorbell::Doorbell;
use super::layout::{BODY_BYTES, Direction, Side, cells};
use super::pieces::{self, Piece};
use super::reach;
use super::ring::{self, Cell, Producer};
use super::segment::{Header, Place, Ring, Segment};
use super::{INLINE_BYTES, LEND_LEAST};
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
    /// Whether messages may be lent.
    may_lend: bool,
}

#[derive(Debug)]
struct Channel {
    ring: Ring,
    producer: Producer,
    /// Of each body, and then of each slot: bytes of which memory is set aside.
    provided: Box<[u32]>,
    /// The cell that is reserved, and for how many bytes.
    reserved: Option<(Cell, usize)>,
    /// What is lent, in the order of the numbers. What is known to have returned is not here any more.
    loans: VecDeque<Loan>,
}

/// A payload that the peer reads where it lies, or else asks for.
#[derive(Debug)]
struct Loan {
    number: u64,
    cell: Cell,
    payload: NonNull<[u8]>,
}

// SAFETY: the payload is only read, and there to be read until the loan has returned, by whatever thread has
// the link: so the caller of `lend` has promised.
unsafe impl Send for Loan {}

impl Channel {
    /// Makes sure of the memory for a payload, which takes the kernel a while the first time.
    #[inline]
    fn provide(&mut self, cell: Cell, len: usize) -> Result<(), LinkError> {
        let provided = &mut self.provided[self.ring.room(cell, len)];
        if *provided < len as u32 {
            self.ring.provide(cell, len)?;
            *provided = len as u32;
        }
        Ok(())
    }

    /// Looks what has returned; whether that is all.
    fn take_back(&mut self) -> Result<bool, LinkError> {
        while let Some(first) = self.loans.front() {
            if !ring::has_returned(&self.ring, first.number)? {
                return Ok(false);
            }
            self.loans.pop_front();
        }
        Ok(true)
    }

    /// Forgets what was lent up to this number, for good, whatever the peer says later.
    fn forget(&mut self, number: u64) {
        let gone = self.loans.partition_point(|loan| loan.number <= number);
        self.loans.drain(..gone);
    }

    /// Copies what the peer asks for into the body of its message's cell.
    #[cold]
    fn give(&mut self, piece: Piece) -> Result<(), LinkError> {
        let loan = self.loans.iter();
        let loan = loan.rev().find(|loan| loan.number == piece.message());
        let Some((cell, payload, rest)) = loan.and_then(|loan| {
            let rest = loan.payload.len().checked_sub(piece.byte())?;
            (rest > 0).then_some((loan.cell, loan.payload, rest.min(BODY_BYTES)))
        }) else {
            return Err(not_lent(piece));
        };
        self.provide(cell, rest)?;
        // SAFETY: the payload is there until it has returned or the link is withdrawn, which nobody has been
        // told, the loan being here; the bytes lie within it, and within the body. The receiver asks only for
        // what comes first of what it has not released, and reads the body when it has the answer: of other
        // messages with that body, earlier ones were released, and later ones wait until this one is.
        unsafe {
            let from = payload.cast::<u8>().add(piece.byte());
            let to = self.ring.body(cell);
            from.copy_to_nonoverlapping(NonNull::new_unchecked(to), rest);
        }
        pieces::give(&self.ring, piece);
        Ok(())
    }
}

impl Tx {
    pub(super) fn new(segment: &Arc<Segment>, direction: Direction, doorbell: Doorbell) -> Self {
        let size = segment.size();
        let geometry = size.geometry();
        let channel = |index| {
            let ring = Ring::new(segment, direction, index);
            // SAFETY: this is the sender's side, and it begins here.
            unsafe { ring.warm_up() };
            Channel {
                ring,
                producer: Producer::new(cells(geometry)),
                provided: vec![0; size.bodies() + geometry.slots].into_boxed_slice(),
                reserved: None,
                loans: VecDeque::new(),
            }
        };
        Self {
            segment: Arc::clone(segment),
            direction,
            slot_bytes: geometry.slot_bytes,
            channels: (0..geometry.channels).map(channel).collect(),
            doorbell,
            may_lend: false,
        }
    }

    /// Lends long payloads, if the peer can read this process's memory. Processes of the same user
    /// are allowed to, where the kernel would else allow it to this one's parents alone.
    pub fn allow_lending(&mut self) {
        self.may_lend = reach::admit(self.segment.reach(self.direction));
    }

    /// Whether the peer reads this process's memory.
    fn is_read(&self) -> bool {
        self.may_lend && self.segment.reach(self.direction).is_readable()
    }
}

impl LinkTx for Tx {
    #[inline]
    fn reserve(&mut self, channel: usize, len: usize) -> Result<Option<&mut [u8]>, LinkError> {
        let slot_bytes = self.slot_bytes;
        if len > slot_bytes {
            return Err(too_long(len, slot_bytes));
        }
        let channel = pick(&mut self.channels, channel)?;
        let depth = channel.ring.depth(len);
        let Some(cell) = channel.producer.poll(&channel.ring, depth)? else {
            return Ok(None);
        };
        if len > INLINE_BYTES {
            channel.provide(cell, len)?;
        }
        channel.reserved = Some((cell, len));
        // SAFETY: the payload lies within the cell or its slot, `len` being at most `slot_bytes`. The cell is
        // this side's until it is published, which takes `&mut self`, so the slice is the only
        // way to it in this process; a peer that writes there breaks the protocol, and harms no
        // more than the bytes.
        Ok(Some(unsafe {
            slice::from_raw_parts_mut(channel.ring.payload(cell, len), len)
        }))
    }

    #[inline]
    fn commit(&mut self, channel: usize, len: usize, tag: u64) -> Result<(), LinkError> {
        let Channel {
            ring,
            producer,
            reserved,
            ..
        } = pick(&mut self.channels, channel)?;
        match *reserved {
            Some((cell, bytes)) if bytes == len => {
                *reserved = None;
                let header = Header {
                    len: len as u32,
                    tag,
                    place: Place::Slot,
                };
                // SAFETY: the cell was reserved and not yet published: it is this side's.
                unsafe { ring.write_header(cell, header) };
                producer.publish(ring);
                self.doorbell.knock();
                Ok(())
            }
            other => Err(not_reserved(channel, len, other.map(|(_, bytes)| bytes))),
        }
    }

    fn lends(&self, _start: *const u8, _bytes: usize) -> Lends {
        if self.is_read() {
            Lends::Anything
        } else {
            Lends::Nothing
        }
    }

    unsafe fn lend(
        &mut self,
        channel: usize,
        payload: &[u8],
        tag: u64,
    ) -> Result<Lending, LinkError> {
        if !(LEND_LEAST..=LEND_MOST).contains(&payload.len()) || !self.is_read() {
            return Ok(Lending::Unable);
        }
        let Channel {
            ring,
            producer,
            reserved,
            loans,
            ..
        } = pick(&mut self.channels, channel)?;
        if let Some((_, bytes)) = reserved {
            return Err(reserved_before(channel, *bytes));
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
        loans.push_back(Loan {
            number,
            cell,
            payload: NonNull::from(payload),
        });
        self.doorbell.knock();
        Ok(Lending::Lent(number))
    }

    fn has_returned(&mut self, channel: usize, loan: u64) -> Result<bool, LinkError> {
        let channel = pick(&mut self.channels, channel)?;
        let has_returned = ring::has_returned(&channel.ring, loan)?;
        if has_returned {
            channel.forget(loan);
        }
        Ok(has_returned)
    }

    fn withdraw(&mut self) {
        ring::close(self.segment.closed(self.direction, Side::Sender));
        for channel in &mut self.channels {
            channel.loans.clear();
        }
    }

    /// What is lent may have to be copied yet, should the peer not be able to read it.
    #[inline]
    fn holds_back(&self, channel: usize) -> bool {
        let channel = self.channels.get(channel);
        channel.is_some_and(|channel| !channel.loans.is_empty())
    }

    fn flush(&mut self) -> Result<bool, LinkError> {
        let mut all = true;
        for channel in &mut self.channels {
            if channel.take_back()? {
                continue;
            }
            all = false;
            if let Some(piece) = pieces::asked(&channel.ring) {
                channel.give(piece)?;
                self.doorbell.knock();
            }
        }
        Ok(all)
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
fn not_lent(piece: Piece) -> LinkError {
    LinkError::Protocol(format!(
        "the peer asks for byte {} of message {}, which is not lent",
        piece.byte(),
        piece.message()
    ))
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
