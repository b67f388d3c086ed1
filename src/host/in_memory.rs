//! Steps without messages: they reduce in this rank's memory, or in all ranks' registered memory.

use std::ops::Range;

use spark_ccl_compute::{Operand, Streaming, Ticket};
use spark_ccl_sched::{Buf, Kind, Rank, Span, Step};
use spark_ccl_transport::{LinkError, LinkRx};

use super::run::{Half, Run};
use super::wires::Obstacle;

/// Faults are looked for after some slices; with helpers, these are no longer than this.
const MOST_AT_ONCE: usize = 1 << 20;

impl Run<'_> {
    /// [`Kind::ReduceLocal`], all of it at once: it is for small counts.
    pub(super) fn reduce_local(&mut self, step: &Step, half: &mut Half) -> Result<bool, Obstacle> {
        if half.pending.is_none() {
            half.pending = self.submit(
                step.src.len as usize,
                Streaming::Nothing,
                |run, operands, targets| {
                    let block = |rank| Span {
                        buf: Buf::Scratch,
                        offset: u64::from(rank) * step.src.len,
                        len: step.src.len,
                    };
                    let others = run.task.reduction.scale_of_received();
                    operands.extend((0..run.wires.size).map(|rank| {
                        if rank == run.wires.rank {
                            run.operand(&step.src, 0)
                        } else {
                            let ptr = run.address(&block(rank), 0);
                            let scale = others;
                            Operand { ptr, scale }
                        }
                    }));
                    targets.push(run.address(&step.dst, 0));
                    Ok(())
                },
            )?;
        }
        self.settle(half, step.src.len)
            .map(|()| half.elements == step.src.len)
    }

    /// The kinds that read, and may write, the peers' registered memory.
    pub(super) fn one_sided(&mut self, step: &Step, half: &mut Half) -> Result<bool, Obstacle> {
        let size = self.task.signature.dtype.size();
        // A slice for each thread, as peers wait for the whole step only.
        let slices = if self.divides() {
            self.wires.helpers.count() + 1
        } else {
            1
        };
        let most = MOST_AT_ONCE.max(self.wires.slot_bytes);
        let limit = ((slices * self.wires.slot_bytes).min(most) / size) as u64;
        let count = limit.min(step.src.len - half.elements);
        if half.pending.is_none() {
            let done = half.elements;
            half.pending = self.submit(
                count as usize,
                self.result_stores(),
                |run, operands, targets| {
                    // All ranks have this factor: where factors differ, this is not chosen.
                    let scale = run.task.reduction.scale;
                    for rank in run.sources(step) {
                        let ptr = run.remote(rank, &step.src, done)?;
                        operands.push(Operand { ptr, scale });
                    }
                    if step.kind != Kind::GetReducePut {
                        targets.push(run.address(&step.dst, done));
                        return Ok(());
                    }
                    for rank in 0..run.wires.size {
                        targets.push(run.remote(rank, &step.dst, done)?);
                    }
                    Ok(())
                },
            )?;
        }
        self.settle(half, count)?;
        if half.elements < step.src.len {
            return Ok(false);
        }
        self.confirm(step).map(|()| true)
    }

    /// The ranks whose memory a step reads.
    fn sources(&self, step: &Step) -> Range<Rank> {
        match step.kind {
            Kind::Get => step.recv_from..step.recv_from + 1,
            _ => 0..self.wires.size,
        }
    }

    /// Checks that the peers' memory was valid for as long as a step has read it. A peer whose
    /// operation has failed has its memory back, and may have overwritten it. Must be called before
    /// the step counts as done, since later steps tell other ranks that all went well.
    ///
    /// It asks the link over which the peer's signal came. So the peer has its end, and closes it
    /// when it withdraws.
    fn confirm(&self, step: &Step) -> Result<(), Obstacle> {
        let mut peers = self.sources(step).filter(|&rank| rank != self.wires.rank);
        let still_lends = |peer| {
            let rx = self.wires.made_rx(peer, self.first_lane);
            rx.is_some_and(LinkRx::still_lends)
        };
        match peers.find(|&peer| !still_lends(peer)) {
            None => Ok(()),
            Some(peer) => Err(Obstacle::Link {
                peer,
                error: LinkError::Closed,
            }),
        }
    }

    /// Starts a reduction over `count` elements of the operands and into the targets that `fill`
    /// lists.
    fn submit(
        &mut self,
        count: usize,
        streaming: Streaming,
        fill: impl FnOnce(&Self, &mut Vec<Operand>, &mut Vec<*mut u8>) -> Result<(), Obstacle>,
    ) -> Result<Option<Ticket>, Obstacle> {
        // Taken out for the time being, so that nothing is allocated for each slice.
        let mut operands = std::mem::take(&mut self.wires.operands);
        let mut targets = std::mem::take(&mut self.wires.targets);
        operands.clear();
        targets.clear();
        let filled = fill(self, &mut operands, &mut targets);
        let started = filled.map(|()| self.start(count, streaming, &operands, &targets));
        self.wires.operands = operands;
        self.wires.targets = targets;
        started
    }

    /// Ends a slice once its job is done.
    fn settle(&mut self, half: &mut Half, count: u64) -> Result<(), Obstacle> {
        if let Some(ticket) = half.pending {
            if !self.wires.compute.poll(ticket) {
                return Err(Obstacle::Reduction);
            }
            half.pending = None;
        }
        half.elements += count;
        Ok(())
    }

    /// The same place in `rank`'s registered memory.
    fn remote(&self, rank: Rank, span: &Span, done: u64) -> Result<*mut u8, Obstacle> {
        let size = self.task.signature.dtype.size();
        let in_output = self.task.input_block.filter(|_| span.buf == Buf::Input);
        let region = match (span.buf, in_output) {
            (Buf::Input, None) => &self.task.input,
            _ => &self.task.output,
        };
        let block = in_output.unwrap_or(0) * u64::from(rank);
        let elements = (block + span.offset + done) as usize;
        let mapped = region.home.as_ref().and_then(|home| {
            let base = home.segment.allocation()?.base(rank as usize)?;
            Some(base.wrapping_add(home.offset + elements * size))
        });
        // The plan chooses one-sided schedules only where every rank's segment is mapped.
        mapped.ok_or_else(|| Obstacle::Link {
            peer: rank,
            error: LinkError::Misuse("registered memory that is not mapped here".to_owned()),
        })
    }
}
