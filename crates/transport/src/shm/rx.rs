//! The receiving half of a link through shared memory. The order of loads and stores is that of
//! `ring.rs` and `pieces.rs`.

use std::slice;
use std::sync::Arc;

use spark_ccl_compute::Helpers;

use super::INLINE_BYTES;
use super::ahead::Ahead;
use super::detour::Detour;
use super::doorbell::Doorbell;
use super::layout::{BODY_BYTES, Direction, Side, cells};
use super::pieces::{self, Piece};
use super::reach::{self, Reach};
use super::ring::{self, Cell, Consumer};
use super::segment::{Header, PayloadLocation, Ring, Segment};
use crate::{Arrival, Borrowing, LEND_MOST, LinkError, LinkRx, Wait};

/// From this message length on, it pays to find out whether messages can be lent.
const PROBE_BYTES: usize = 8 << 10;

/// The receiving half of a link through shared memory.
///
/// Dropping it closes this end: the peer gets [`LinkError::Closed`] once it has no free cells left.
#[derive(Debug)]
pub struct Rx {
    segment: Arc<Segment>,
    direction: Direction,
    slot_bytes: usize,
    ring: Ring,
    consumer: Consumer,
    ahead: Ahead,
    /// The message at the head, with its length checked.
    held: Option<Held>,
    /// Holds a lent message that is peeked at.
    copy: Vec<u8>,
    detour: Detour,
    pub(super) doorbell: Doorbell,
    lender: Lender,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    cell: Cell,
    len: usize,
    tag: u64,
    place: PayloadLocation,
    /// How many bytes of a lent payload were borrowed.
    borrowed: usize,
    /// How many bytes of a lent payload are in `copy`.
    copied: usize,
}

impl Held {
    /// Whether a lent payload is in `copy`.
    fn is_copied(&self) -> bool {
        self.copied == self.len
    }
}

/// Whether the peer's memory can be read.
#[derive(Debug, Clone, Copy)]
enum Lender {
    /// Not tried yet.
    Unknown,
    Reachable(Reach),
    Unreachable,
}

impl Rx {
    pub(super) fn new(segment: &Arc<Segment>, direction: Direction, doorbell: Doorbell) -> Self {
        let geometry = segment.size().geometry();
        Self {
            segment: Arc::clone(segment),
            direction,
            slot_bytes: geometry.slot_bytes,
            ring: Ring::new(segment, direction),
            consumer: Consumer::new(cells(geometry)),
            ahead: Ahead::default(),
            held: None,
            copy: Vec::new(),
            detour: Detour::default(),
            doorbell,
            lender: Lender::Unknown,
        }
    }

    /// The next message, wherever its payload is.
    #[inline]
    fn look(&mut self) -> Result<Option<Held>, LinkError> {
        if self.held.is_some() {
            return Ok(self.held);
        }
        let Some(cell) = self.consumer.poll(&self.ring)? else {
            return Ok(None);
        };
        // SAFETY: the consumer found the cell filled, so it belongs to this side until it is
        // released.
        let Header { len, tag, place } = unsafe { self.ring.read_header(cell) };
        let len = len as usize;
        let most = match place {
            PayloadLocation::Slot => self.slot_bytes,
            PayloadLocation::Lent(_) => LEND_MOST,
        };
        if len > most {
            return Err(too_long(len, most));
        }
        let found = *self.held.insert(Held {
            cell,
            len,
            tag,
            place,
            borrowed: 0,
            copied: 0,
        });
        if len > INLINE_BYTES && matches!(place, PayloadLocation::Slot) {
            self.ahead.note(&self.segment, self.direction, len);
        }
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

    /// Receives the next bytes of a lent payload, from this byte on, into `room`, which is no
    /// longer than the rest. Returns how many, if any have arrived.
    fn receive_lent(
        &mut self,
        (held, address): (Held, u64),
        byte: usize,
        room: &mut [u8],
        helpers: Option<&Helpers>,
    ) -> Result<Option<usize>, LinkError> {
        if room.is_empty() {
            return Ok(Some(0));
        }
        let Lender::Reachable(reach) = self.lender else {
            return self.receive_piece(held, byte, room);
        };
        match self
            .detour
            .read(reach, address.wrapping_add(byte as u64), room, helpers)
        {
            Ok(()) if self.still_lends() => Ok(Some(room.len())),
            Ok(()) => Err(LinkError::Closed),
            Err(error) => {
                spark_ccl_log::info!("messages take two copies from now on: {error}");
                self.lender = Lender::Unreachable;
                self.segment.reach(self.direction).give_up();
                self.receive_piece(held, byte, room)
            }
        }
    }

    /// Has the sender copy the next bytes.
    #[cold]
    fn receive_piece(
        &mut self,
        held: Held,
        byte: usize,
        room: &mut [u8],
    ) -> Result<Option<usize>, LinkError> {
        let ring = &self.ring;
        let piece = Piece::new(self.consumer.number(), byte);
        if pieces::ask(ring, piece) {
            self.doorbell.ring_if_asleep();
        }
        if !pieces::has_come(ring, piece)? {
            return Ok(None);
        }
        let count = room.len().min(BODY_BYTES);
        // SAFETY: the body has at least `count` bytes. The sender has written what was requested,
        // and writes there again only upon the next request, which takes `&mut self`. A peer that
        // writes earlier violates the protocol, and can only corrupt the bytes.
        let body = unsafe { slice::from_raw_parts(ring.body(held.cell), count) };
        room[..count].copy_from_slice(body);
        Ok(Some(count))
    }

    /// Copies a lent payload into `copy`, to be peeked at; returns whether it is complete.
    #[cold]
    fn copy(&mut self, lent: (Held, u64)) -> Result<bool, LinkError> {
        let mut held = lent.0;
        let mut copy = std::mem::take(&mut self.copy);
        copy.resize(held.len.max(copy.len()), 0);
        let outcome = loop {
            if held.is_copied() {
                break Ok(true);
            }
            let room = &mut copy[held.copied..held.len];
            match self.receive_lent(lent, held.copied, room, None) {
                Ok(Some(count)) => held.copied += count,
                Ok(None) => break Ok(false),
                Err(error) => break Err(error),
            }
        };
        self.copy = copy;
        self.held = Some(held);
        outcome
    }
}

impl LinkRx for Rx {
    #[inline]
    fn peek(&mut self) -> Result<Option<Arrival<'_>>, LinkError> {
        let Some(held) = self.look()? else {
            return Ok(None);
        };
        let Held { cell, len, tag, .. } = held;
        if let PayloadLocation::Lent(address) = held.place {
            if !held.is_copied() && !self.copy((held, address))? {
                return Ok(None);
            }
            let payload = &self.copy[..len];
            return Ok(Some(Arrival { tag, payload }));
        }
        let payload = self.ring.payload(cell, len);
        // SAFETY: the payload lies within the cell or its slot, `len` being at most `slot_bytes`.
        // The cell belongs to this side until it is released, which takes `&mut self`, so nothing
        // in this process writes to it. A peer that does violates the protocol, and can only
        // corrupt the bytes.
        let payload = unsafe { slice::from_raw_parts(payload, len) };
        Ok(Some(Arrival { tag, payload }))
    }

    fn next_tag(&mut self) -> Result<Option<u64>, LinkError> {
        Ok(self.look()?.map(|held| held.tag))
    }

    #[inline]
    fn has_news(&mut self) -> bool {
        !matches!(self.look(), Ok(None))
    }

    unsafe fn borrow(
        &mut self,
        room: &mut [u8],
        tag: u64,
        helpers: Option<&Helpers>,
    ) -> Result<Borrowing, LinkError> {
        match self.look()? {
            Some(
                held @ Held {
                    place: PayloadLocation::Lent(address),
                    ..
                },
            ) if held.tag == tag && !held.is_copied() => {
                let byte = held.borrowed;
                let most = room.len().min(held.len - byte);
                let room = &mut room[..most];
                let Some(count) = self.receive_lent((held, address), byte, room, helpers)? else {
                    return Ok(Borrowing::NotYet);
                };
                let borrowed = byte + count;
                if borrowed == held.len {
                    self.release();
                } else {
                    self.held = Some(Held { borrowed, ..held });
                }
                Ok(Borrowing::Done(count))
            }
            None => Ok(Borrowing::NotYet),
            Some(_) => Ok(Borrowing::Unable),
        }
    }

    fn still_lends(&self) -> bool {
        ring::was_lent(self.segment.closed(self.direction, Side::Sender))
    }

    #[inline]
    fn release(&mut self) {
        if self.held.take().is_some() {
            self.consumer.release(&self.ring);
            self.doorbell.ring_if_asleep();
        }
    }

    fn arm(&mut self, wait: &mut Wait) {
        self.doorbell.arm(wait);
    }

    fn disarm(&mut self) {
        self.doorbell.disarm();
    }
}

impl Drop for Rx {
    fn drop(&mut self) {
        ring::close(self.segment.closed(self.direction, Side::Receiver));
        self.doorbell.ring_if_asleep();
    }
}

#[cold]
fn too_long(len: usize, most: usize) -> LinkError {
    LinkError::Protocol(format!(
        "the peer sent {len} bytes, where {most} are the most"
    ))
}
