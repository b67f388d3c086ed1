//! Messages that are copied once, by their receiver, straight out of the sender's memory.

use super::exec::Run;
use super::flow::Flow;
use super::wires::Obstacle;
use spark_ccl_compute::Scale;
use spark_ccl_sched::{Rank, Span};
use spark_ccl_transport::{Borrowing, LEND_MOST, Lending, LinkError};

/// Of shorter flows nothing is ever lent.
const LEAST_BYTES: u64 = 4 << 10;

impl Run<'_> {
    /// Lends or borrows what comes next of a flow, if it is to be moved only and the link can; how
    /// many elements.
    pub(super) fn single_copy(
        &mut self,
        lane: usize,
        flow: &Flow,
        done: u64,
    ) -> Result<Option<u64>, Obstacle> {
        let size = self.task.signature.dtype.size() as u64;
        let rest = flow.ready - done;
        match *flow {
            _ if rest == 0 || flow.elements * size < LEAST_BYTES => Ok(None),
            Flow {
                from: None,
                to: Some(peer),
                src: Some(span),
                dst: None,
                ..
            } if self.may_lend(flow, &span) => self.lend(lane, peer, span, done, rest),
            Flow {
                from: Some(peer),
                to: None,
                src: None,
                dst: Some(span),
                ..
            } => self.borrow(lane, peer, span, done, rest),
            _ => Ok(None),
        }
    }

    /// Whether a flow's payload may stay where it is, and had better be copied by its receiver: not
    /// where the sender has nothing else to do.
    fn may_lend(&self, flow: &Flow, span: &Span) -> bool {
        let (input, output) = (self.task.input.ptr, self.task.output.ptr);
        self.program.may_lend()
            && self.scale(span.buf) == Scale::One
            && (flow.is_half || input != output)
    }

    fn lend(
        &mut self,
        lane: usize,
        peer: Rank,
        span: Span,
        done: u64,
        rest: u64,
    ) -> Result<Option<u64>, Obstacle> {
        let size = self.task.signature.dtype.size();
        let count = rest.min((LEND_MOST / size) as u64);
        // SAFETY: the span lies within the task's regions or the scratch, which the operation holds,
        // and nothing writes it until the loan has returned: the program says so, and the operation
        // does not end before.
        let payload =
            unsafe { std::slice::from_raw_parts(self.address(&span, done), count as usize * size) };
        match self.wires.tx[peer as usize].lend(lane, payload, self.tag) {
            Ok(Lending::Lent(number)) => {
                self.loans.note(peer, lane, number);
                Ok(Some(count))
            }
            Ok(Lending::NotYet) => Err(Obstacle::Credit { peer }),
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
        // SAFETY: the span lies within the task's regions or the scratch, which the operation holds
        // and may write; what reads it comes after this step.
        let room = unsafe {
            std::slice::from_raw_parts_mut(self.address(&span, done), rest as usize * size)
        };
        let link = |error| Obstacle::Link { peer, error };
        match self.wires.rx[peer as usize].borrow(lane, room, self.tag) {
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
