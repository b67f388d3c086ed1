//! Messages that are copied once, straight out of the sender's memory: by their receiver, or by the
//! kernel. Knows a step and its link; what is lent is remembered in `loans.rs`.

use std::ptr::NonNull;
use std::sync::Arc;

use spark_ccl_sched::{Rank, Span, Step};
use spark_ccl_transport::{Borrowing, LEND_MOST, Lending, Lends, LinkError};
use spark_ccl_types::Scale;

use super::run::Run;
use super::transfer::Transfer;
use super::wires::Obstacle;
use crate::mesh::LinkId;
use crate::task::DIVIDED_BYTES;

/// Nothing is lent of a shorter transfer.
const LEAST_BYTES: u64 = 4 << 10;

impl Run<'_> {
    /// Lends or borrows the next part of a transfer, if that needs no reduction and the link can.
    /// Returns how many elements.
    pub(super) fn single_copy(
        &mut self,
        lane: usize,
        transfer: &Transfer,
        done: u64,
    ) -> Result<Option<u64>, Obstacle> {
        let size = self.task.signature.dtype.size() as u64;
        let rest = transfer.ready - done;
        match *transfer {
            _ if rest == 0 || transfer.elements * size < LEAST_BYTES => Ok(None),
            Transfer {
                from: None,
                to: Some(peer),
                src: Some(span),
                dst: None,
                ..
            } => self.lend(lane, peer, transfer, span, done),
            Transfer {
                from: Some(peer),
                to: None,
                src: None,
                dst: Some(span),
                ..
            } => self.borrow(lane, peer, span, done, rest),
            _ => Ok(None),
        }
    }

    /// Whether a step should send its result on from where it is kept.
    pub(super) fn lends_on(&self, lane: usize, step: &Step) -> bool {
        let lends = || self.lends((step.send_to, lane), &step.dst, 0, step.dst.len);
        // A reduction can write its result to a slot at the same time, while it is in the cache. So
        // lending it only pays if a device reads it.
        self.program.may_lend()
            && (!self.task.signature.operation.reduces() || lends() == Lends::Registered)
    }

    /// The number of elements to lend, from `done` on; `None` if a slot is needed or better.
    fn lendable(
        &self,
        link_id: LinkId,
        transfer: &Transfer,
        span: &Span,
        done: u64,
    ) -> Option<u64> {
        if !self.program.may_lend() || self.scale_of_sent(span.buf) != Scale::One {
            return None;
        }
        let ready = transfer.ready - done;
        let size = self.task.signature.dtype.size();
        let most = |bytes: usize| (bytes / size) as u64;
        let lends = self.lends(link_id, span, done, ready);
        if !lends.pays_for(transfer.elements as usize * size) {
            return None;
        }
        match lends {
            Lends::Nothing => None,
            Lends::Registered | Lends::Slots => {
                // A receiver that peeks at a message expects as much as a slot holds.
                let slot = most(self.wires.slot_bytes);
                let left = transfer.elements - done;
                let count = match (lends, transfer.is_half) {
                    (Lends::Slots, false) => left,
                    // The other half of a step waits no longer than for one message.
                    _ => slot.min(left),
                };
                (ready >= count).then_some(count)
            }
            Lends::Anything => {
                // A rank that has nothing else to do fills slots, while the receiver empties those
                // before: so both copy, and not the receiver alone.
                let is_busy = transfer.is_half || self.task.input.ptr != self.task.output.ptr;
                let reduces = self.task.signature.operation.reduces();
                (is_busy && !reduces).then(|| ready.min(most(LEND_MOST)))
            }
        }
    }

    fn lends(&self, (peer, lane): LinkId, span: &Span, done: u64, len: u64) -> Lends {
        let bytes = len as usize * self.task.signature.dtype.size();
        match self.wires.made_tx(peer, lane) {
            Some(tx) => tx.lends(self.address(span, done), bytes),
            None => Lends::Nothing,
        }
    }

    fn lend(
        &mut self,
        lane: usize,
        peer: Rank,
        transfer: &Transfer,
        span: Span,
        done: u64,
    ) -> Result<Option<u64>, Obstacle> {
        let size = self.task.signature.dtype.size();
        let Some(count) = self.lendable((peer, lane), transfer, &span, done) else {
            return Ok(None);
        };
        let start = self.address(&span, done);
        let tx = self.wires.tx(peer, lane)?;
        // SAFETY: the span lies within the task's regions or the scratch, which the operation
        // holds, so that the pointer is not null. It is valid for reads until the loan has
        // returned: the operation does not end before, unless the links are withdrawn. Writes leave
        // it valid, as they go by the region's pointer, from which it is made. Nothing writes there
        // before the peer has received the payload: the program says so.
        let lending = unsafe {
            let start = NonNull::new_unchecked(start);
            let payload = NonNull::slice_from_raw_parts(start, count as usize * size);
            tx.lend(payload, self.tag)
        };
        match lending {
            Ok(Lending::Lent { loan, bytes }) => {
                self.loans.note(peer, lane, loan);
                self.wires.note_held_back(peer, lane);
                Ok(Some((bytes / size) as u64))
            }
            Ok(Lending::NotYet) => Err(self.wires.busy(peer, lane)),
            Ok(Lending::Unable) => Ok(None),
            Err(error) => Err(Obstacle::Link { peer, error }),
        }
    }

    fn borrow(
        &mut self,
        lane: usize,
        peer: Rank,
        span: Span,
        done: u64,
        rest: u64,
    ) -> Result<Option<u64>, Obstacle> {
        let size = self.task.signature.dtype.size();
        let start = self.address(&span, done);
        let divides = self.divides() && self.task.has_bytes(DIVIDED_BYTES);
        let helpers = divides.then(|| Arc::clone(&self.wires.helpers));
        let rx = self.wires.rx(peer, lane)?;
        // SAFETY: the span lies within the task's regions or the scratch, which the operation holds
        // and may write. A step that reads it comes after this one, which ends when all of it has
        // been received. The operation does not end before, unless the links have been withdrawn.
        let borrowing = unsafe {
            let room = std::slice::from_raw_parts_mut(start, rest as usize * size);
            rx.borrow(room, self.tag, helpers.as_deref())
        };
        let link = |error| Obstacle::Link { peer, error };
        match borrowing {
            Ok(Borrowing::Done(bytes)) if bytes > 0 && bytes % size == 0 => {
                Ok(Some((bytes / size) as u64))
            }
            Ok(Borrowing::Done(bytes)) => Err(link(LinkError::Protocol(format!(
                "the peer lent {bytes} bytes of elements of {size}"
            )))),
            Ok(Borrowing::NotYet) => Err(Obstacle::Message { peer, lane }),
            Ok(Borrowing::Unable) => Ok(None),
            Err(error) => Err(link(error)),
        }
    }
}
