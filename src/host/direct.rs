//! Messages that move between a link and their place without a slot. Knows a step and its link;
//! memory that is lent is in `single_copy.rs`.

use spark_ccl_sched::{Rank, Span};
use spark_ccl_transport::{Direct, Sending};
use spark_ccl_types::Scale;

use super::run::{ASK_SLOTLESS_BYTES, Run};
use super::transfer::Transfer;
use super::wires::Obstacle;

impl Run<'_> {
    /// Moves a slice of that many elements without a slot, if nothing else is done with it and the
    /// link can. Of a step that only sends, moves several if the link takes them. Returns how many
    /// elements.
    pub(super) fn direct(
        &mut self,
        lane: usize,
        transfer: &Transfer,
        done: u64,
        count: usize,
    ) -> Result<Option<u64>, Obstacle> {
        let size = self.task.signature.dtype.size();
        let moved = match *transfer {
            _ if count * size < ASK_SLOTLESS_BYTES => None,
            Transfer {
                from: None,
                to: Some(peer),
                src: Some(span),
                dst: None,
                ..
            } if self.scale_of_sent(span.buf) == Scale::One => {
                let rest = (transfer.ready - done) as usize;
                // The other half waits for its turn.
                let count = if transfer.is_half { count } else { rest };
                self.send_direct(lane, peer, span, done, count * size)?
            }
            Transfer {
                from: Some(peer),
                to: None,
                src: None,
                dst: Some(span),
                ..
            } => self.receive_direct(lane, peer, span, done, count * size)?,
            _ => None,
        };
        Ok(moved.map(|bytes| (bytes / size) as u64))
    }

    fn send_direct(
        &mut self,
        lane: usize,
        peer: Rank,
        span: Span,
        done: u64,
        bytes: usize,
    ) -> Result<Option<usize>, Obstacle> {
        // SAFETY: the span lies within the task's regions or the scratch, which the operation
        // holds, and `bytes` within the span's rest. A step that would write it comes after this
        // one, if there is any, and the link keeps nothing of it beyond the call.
        let payload = unsafe { std::slice::from_raw_parts(self.address(&span, done), bytes) };
        let tx = self.wires.tx(peer, lane)?;
        let sent = tx.send_from(payload, self.tag);
        self.wires.note_held_back(peer, lane);
        match sent {
            Ok(Sending::Done(bytes)) => Ok(Some(bytes)),
            Ok(Sending::Unable) => Ok(None),
            Ok(Sending::NotYet) => Err(Obstacle::LinkBusy { peer }),
            Err(error) => Err(Obstacle::Link { peer, error }),
        }
    }

    fn receive_direct(
        &mut self,
        lane: usize,
        peer: Rank,
        span: Span,
        done: u64,
        bytes: usize,
    ) -> Result<Option<usize>, Obstacle> {
        // SAFETY: the span lies within the task's regions or the scratch, which the operation holds
        // and may write, and `bytes` within the span's rest. A step that reads it comes after this
        // one, and the link keeps nothing of it beyond the call.
        let payload = unsafe { std::slice::from_raw_parts_mut(self.address(&span, done), bytes) };
        let rx = self.wires.rx(peer, lane)?;
        match rx.receive_into(payload, self.tag) {
            Ok(Direct::Done) => Ok(Some(bytes)),
            Ok(Direct::Unable) => Ok(None),
            Ok(Direct::NotYet) => Err(Obstacle::LinkBusy { peer }),
            Err(error) => Err(Obstacle::Link { peer, error }),
        }
    }
}
