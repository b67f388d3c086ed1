//! The sending half of a link through shared memory. The order of loads and stores is that of
//! `ring.rs` and `pieces.rs`.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use super::ahead::Ahead;
use super::doorbell::Doorbell;
use super::layout::{BODY_BYTES, Direction, Side, cells};
use super::near::Distance;
use super::pieces::{self, Piece};
use super::reach;
use super::ring::{self, Cell, Producer};
use super::segment::{Header, PayloadLocation, Ring, Segment};
use super::{INLINE_BYTES, LEND_LEAST};
use crate::{FAR_STORES_LEAST, LEND_MOST, Lending, Lends, LinkError, LinkTx};

/// The sending half of a link through shared memory.
///
/// Dropping it closes this end: the peer gets [`LinkError::Closed`] once it has read everything
/// that was sent.
#[derive(Debug)]
pub struct Tx {
    segment: Arc<Segment>,
    direction: Direction,
    slot_bytes: usize,
    ring: Ring,
    producer: Producer,
    distance: Distance,
    /// For each body and then each slot, how many bytes of it are allocated.
    provided: Box<[u32]>,
    ahead: Ahead,
    /// The reserved cell and the number of bytes it was reserved for.
    reserved: Option<(Cell, usize)>,
    /// Loans that are not known to have returned, in the order of their numbers.
    loans: VecDeque<Loan>,
    pub(super) doorbell: Doorbell,
    /// Whether messages may be lent.
    may_lend: bool,
}

/// A payload that the peer reads in place, or asks for in pieces.
#[derive(Debug)]
struct Loan {
    number: u64,
    cell: Cell,
    payload: NonNull<[u8]>,
}

// SAFETY: the payload is only read. It stays valid and unchanged until the loan has returned, no
// matter which thread owns the link: `lend`, which makes all of these, requires that.
unsafe impl Send for Loan {}

impl Tx {
    pub(super) fn new(segment: &Arc<Segment>, direction: Direction, doorbell: Doorbell) -> Self {
        let size = segment.size();
        let geometry = size.geometry();
        let ring = Ring::new(segment, direction);
        // SAFETY: this is the sender's side, which is just being made and has sent nothing.
        unsafe { ring.warm_up() };
        Self {
            segment: Arc::clone(segment),
            direction,
            slot_bytes: geometry.slot_bytes,
            ring,
            producer: Producer::new(cells(geometry)),
            distance: Distance::default(),
            provided: vec![0; size.bodies() + geometry.slots].into_boxed_slice(),
            ahead: Ahead::default(),
            reserved: None,
            loans: VecDeque::new(),
            doorbell,
            may_lend: false,
        }
    }

    /// Lends long payloads from now on, if the peer can read this process's memory. If the kernel
    /// allows only this process's ancestors to read it, this allows all processes of the same user
    /// to do so.
    pub fn allow_lending(&mut self) {
        self.may_lend = reach::admit(self.segment.reach(self.direction));
    }

    /// Whether the peer can read this process's memory.
    fn is_read(&self) -> bool {
        self.may_lend && self.segment.reach(self.direction).is_readable()
    }

    /// Allocates the memory for a payload, which takes the kernel some time on first use.
    #[inline]
    fn provide(&mut self, cell: Cell, len: usize) -> Result<(), LinkError> {
        let provided = &mut self.provided[self.ring.room(cell, len)];
        if *provided < len as u32 {
            if !self.ahead.has(len) {
                self.ring.provide(cell, len)?;
                self.ahead.note(&self.segment, self.direction, len);
            }
            *provided = len as u32;
        }
        Ok(())
    }

    /// Removes the loans that have returned; returns whether none is left.
    fn take_back(&mut self) -> Result<bool, LinkError> {
        self.distance.spoil();
        while let Some(first) = self.loans.front() {
            if !ring::has_returned(&self.ring, first.number)? {
                return Ok(false);
            }
            self.loans.pop_front();
        }
        Ok(true)
    }

    /// Removes the loans up to this number for good, whatever the peer reports later.
    fn forget(&mut self, number: u64) {
        let gone = self.loans.partition_point(|loan| loan.number <= number);
        self.loans.drain(..gone);
    }

    /// Copies the piece that the peer asks for into the body of its message's cell.
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
        // SAFETY: the payload is valid until the loan has returned or the link is withdrawn, as
        // `lend` requires; the loan is still listed, so neither has happened. The bytes lie within
        // the payload and within the body. The receiver asks only for its oldest message that it
        // has not released, and reads the body only after the answer. Of the other messages that
        // share the body, earlier ones have been released, and later ones wait until this one is.
        unsafe {
            let from = payload.cast::<u8>().add(piece.byte());
            let to = self.ring.body(cell);
            from.copy_to_nonoverlapping(NonNull::new_unchecked(to), rest);
        }
        pieces::give(&self.ring, piece);
        Ok(())
    }
}

impl LinkTx for Tx {
    #[inline]
    fn reserve(&mut self, len: usize) -> Result<Option<&mut [u8]>, LinkError> {
        let slot_bytes = self.slot_bytes;
        if len > slot_bytes {
            return Err(too_long(len, slot_bytes));
        }
        if len >= FAR_STORES_LEAST {
            let Self { producer, ring, .. } = self;
            self.distance.measure(|| producer.look(ring))?;
        }
        let depth = self.ring.depth(len);
        let Some(cell) = self.producer.poll(&self.ring, depth)? else {
            return Ok(None);
        };
        if len > INLINE_BYTES {
            self.provide(cell, len)?;
        }
        self.reserved = Some((cell, len));
        // SAFETY: the payload lies within the cell or its slot, `len` being at most `slot_bytes`.
        // The cell belongs to this side until it is published, which takes `&mut self`, so the
        // slice is the only access to it in this process. A peer that writes there violates the
        // protocol, and can only corrupt the bytes.
        Ok(Some(unsafe {
            slice::from_raw_parts_mut(self.ring.payload(cell, len), len)
        }))
    }

    #[inline]
    fn commit(&mut self, len: usize, tag: u64) -> Result<(), LinkError> {
        match self.reserved {
            Some((cell, bytes)) if bytes == len => {
                self.reserved = None;
                let header = Header {
                    len: len as u32,
                    tag,
                    place: PayloadLocation::Slot,
                };
                // SAFETY: the cell was reserved and has not been published, so it belongs to this
                // side.
                unsafe { self.ring.write_header(cell, header) };
                self.producer.publish(&self.ring);
                self.doorbell.ring_if_asleep();
                Ok(())
            }
            other => Err(not_reserved(len, other.map(|(_, bytes)| bytes))),
        }
    }

    #[inline]
    fn is_far(&self) -> bool {
        self.distance.is_far()
    }

    fn lends(&self, _start: *const u8, _bytes: usize) -> Lends {
        if self.is_read() {
            Lends::Anything
        } else {
            Lends::Nothing
        }
    }

    unsafe fn lend(&mut self, payload: NonNull<[u8]>, tag: u64) -> Result<Lending, LinkError> {
        if !(LEND_LEAST..=LEND_MOST).contains(&payload.len()) || !self.is_read() {
            return Ok(Lending::Unable);
        }
        if let Some((_, bytes)) = self.reserved {
            return Err(reserved_before(bytes));
        }
        let Some(cell) = self.producer.poll(&self.ring, self.ring.depth(0))? else {
            return Ok(Lending::NotYet);
        };
        let header = Header {
            len: payload.len() as u32,
            tag,
            place: PayloadLocation::Lent(payload.cast::<u8>().as_ptr() as u64),
        };
        // SAFETY: the producer returned the cell as free and has not published it, so it belongs to
        // this side.
        unsafe { self.ring.write_header(cell, header) };
        let number = self.producer.publish(&self.ring);
        self.loans.push_back(Loan {
            number,
            cell,
            payload,
        });
        self.doorbell.ring_if_asleep();
        Ok(Lending::Lent {
            loan: number,
            bytes: payload.len(),
        })
    }

    fn has_returned(&mut self, loan: u64) -> Result<bool, LinkError> {
        self.distance.spoil();
        let has_returned = ring::has_returned(&self.ring, loan)?;
        if has_returned {
            self.forget(loan);
        }
        Ok(has_returned)
    }

    fn withdraw(&mut self) {
        ring::close(self.segment.closed(self.direction, Side::Sender));
        self.loans.clear();
        self.doorbell.ring_if_asleep();
    }

    /// Loans count as held back: they may have to be copied if the peer cannot read them.
    #[inline]
    fn holds_back(&self) -> bool {
        !self.loans.is_empty()
    }

    fn flush(&mut self) -> Result<bool, LinkError> {
        if self.take_back()? {
            return Ok(true);
        }
        if let Some(piece) = pieces::asked(&self.ring) {
            self.give(piece)?;
            self.doorbell.ring_if_asleep();
        }
        Ok(false)
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        ring::close(self.segment.closed(self.direction, Side::Sender));
        self.doorbell.ring_if_asleep();
    }
}

#[cold]
fn too_long(len: usize, slot_bytes: usize) -> LinkError {
    LinkError::Misuse(format!("a message of {len} bytes in slots of {slot_bytes}"))
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
fn reserved_before(reserved: usize) -> LinkError {
    LinkError::Misuse(format!("lending after a reservation of {reserved} bytes"))
}

#[cold]
fn not_reserved(len: usize, reserved: Option<usize>) -> LinkError {
    LinkError::Misuse(match reserved {
        Some(reserved) => {
            format!("commit of {len} bytes after a reservation of {reserved}")
        }
        None => format!("commit of {len} bytes without a reservation"),
    })
}
