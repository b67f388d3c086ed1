//! Runs the steps of all ranks on checked memory.

use std::collections::HashMap;
use std::ops::Range;

use super::goal::{Goal, Want};
use super::memory::{Cell, ElementProblem, RankMemory, check_scaling, reduce};
use super::order::{Clock, Order};
use super::value::Value;
use crate::defect::Defect;
use crate::lockstep::{Model, ProcessId, Slice};
use crate::step::{Buf, Kind, Rank, Span, Step};
use crate::steps::Steps;

pub(super) struct Checker<V> {
    memories: Vec<RankMemory<V>>,
    /// The ranks whose messages may be read from their memory.
    may_lend: Vec<bool>,
    /// Only if ranks access each other's memory.
    order: Option<Order>,
}

/// A message: its elements, and the sender's vector clock.
pub(super) struct Envelope<V> {
    cells: Vec<Cell<V>>,
    clock: Option<Clock>,
    loan: Option<Loan>,
}

/// Memory of the sender from which the receiver reads a message.
struct Loan {
    owner: Rank,
    range: Range<usize>,
}

impl<V: Value> Checker<V> {
    pub(super) fn new<S: Steps>(goal: &impl Goal, ranks: &[S]) -> Self {
        let memory = |(rank, steps): (Rank, &S)| {
            RankMemory::new(rank, goal.layout(rank), steps.scratch(), goal.reduces())
        };
        let channels = ranks.iter().map(Steps::channels).max().unwrap_or(1);
        let is_remote =
            |steps: &S| (0..channels).any(|channel| steps.walk(channel).any(is_one_sided));
        let may_lend: Vec<bool> = ranks.iter().map(Steps::may_lend).collect();
        let is_shared = ranks.iter().any(is_remote) || may_lend.contains(&true);
        Self {
            memories: (0..).zip(ranks).map(memory).collect(),
            may_lend,
            order: is_shared.then(|| Order::new(ranks.len(), channels)),
        }
    }

    /// Compares the outputs with the expected values, and between ranks.
    pub(super) fn finish(&self, goal: &impl Goal) -> Result<(), Defect> {
        // A race can be the cause of a wrong result, but not the other way round.
        self.order.as_ref().map_or(Ok(()), Order::finish)?;
        let size = self.memories.len() as u32;
        let mut totals = HashMap::new();
        for (rank, memory) in (0..).zip(&self.memories) {
            for element in 0..goal.layout(rank).output.1 {
                let cell = memory.output(element);
                let is_right = match (goal.want(rank, element), cell) {
                    (Want::Copy { rank, index }, Some(cell)) => {
                        cell.index == index && cell.value == V::input(rank, index)
                    }
                    (Want::Total { index }, Some(cell)) => {
                        let has_all = match totals.insert(index, cell.value) {
                            Some(elsewhere) => elsewhere == cell.value,
                            None => cell.value.is_total(size, index),
                        };
                        // Only a step that reduces multiplies by the factor of a mean: a new
                        // `Want` of several contributions must check this, too.
                        let is_scaled = cell.is_reduced || size == 1;
                        has_all && cell.index == index && !cell.is_fresh && is_scaled
                    }
                    (Want::Same, cell) => cell.is_none_or(|cell| cell.is_fresh),
                    (_, None) => false,
                };
                if !is_right {
                    let seen = format!("{cell:?}");
                    return Err(Defect::Result {
                        rank,
                        element,
                        seen,
                    });
                }
            }
        }
        Ok(())
    }

    fn read(
        &mut self,
        at: ProcessId,
        owner: Rank,
        span: Span,
        slice: Slice,
    ) -> Result<Vec<Cell<V>>, ElementProblem> {
        let memory = &mut self.memories[owner as usize];
        if let Some(order) = &mut self.order {
            order.access(at, owner, memory.range(span, slice)?, false);
        }
        memory.read(at.channel, span, slice)
    }

    fn write(
        &mut self,
        at: ProcessId,
        owner: Rank,
        span: Span,
        slice: Slice,
        cells: &[Cell<V>],
    ) -> Result<(), ElementProblem> {
        let memory = &mut self.memories[owner as usize];
        if let Some(order) = &mut self.order {
            order.access(at, owner, memory.range(span, slice)?, true);
        }
        memory.write(at.channel, span, slice, cells)
    }

    /// The position of a message's elements in the sender's memory, if the receiver may read them
    /// there.
    fn loan(&self, rank: Rank, step: &Step, slice: Slice) -> Result<Option<Loan>, ElementProblem> {
        let span = match step.kind {
            Kind::Send => step.src,
            Kind::RecvCopySend | Kind::RecvReduceCopySend => step.dst,
            _ => return Ok(None),
        };
        if !self.may_lend[rank as usize] {
            return Ok(None);
        }
        let range = self.memories[rank as usize].range(span, slice)?;
        Ok(Some(Loan { owner: rank, range }))
    }

    /// Reduces the received elements with this rank's own.
    fn combine(
        &mut self,
        at: ProcessId,
        step: &Step,
        slice: Slice,
        received: &[Cell<V>],
    ) -> Result<Vec<Cell<V>>, ElementProblem> {
        let own = self.read(at, at.rank, step.src, slice)?;
        check_scaling(&own, step.src.buf == Buf::Input, slice)?;
        check_scaling(received, step.receives_contribution, slice)?;
        if step.recv_from < at.rank {
            reduce(received, &own, slice)
        } else {
            reduce(&own, received, slice)
        }
    }

    /// Reduces the contributions of all ranks in rank order.
    fn reduce_all(
        &mut self,
        at: ProcessId,
        slice: Slice,
        operand: impl Fn(Rank) -> (Rank, Span),
    ) -> Result<Vec<Cell<V>>, ElementProblem> {
        let (owner, span) = operand(0);
        let mut total = self.read(at, owner, span, slice)?;
        check_scaling(&total, true, slice)?;
        for rank in 1..self.memories.len() as Rank {
            let (owner, span) = operand(rank);
            let next = self.read(at, owner, span, slice)?;
            check_scaling(&next, true, slice)?;
            total = reduce(&total, &next, slice)?;
        }
        Ok(total)
    }

    /// Reduces the operands in all ranks' registered memory to the `dst` of some ranks.
    fn get_reduce(
        &mut self,
        at: ProcessId,
        step: &Step,
        owners: Range<Rank>,
    ) -> Result<(), ElementProblem> {
        let cells = self.reduce_all(at, whole(step.src), |other| (other, step.src))?;
        for owner in owners {
            self.write(at, owner, step.dst, whole(step.dst), &cells)?;
        }
        Ok(())
    }

    /// Does a slice; returns the elements to send.
    fn apply(
        &mut self,
        at: ProcessId,
        step: &Step,
        slice: Slice,
        received: Vec<Cell<V>>,
    ) -> Result<Vec<Cell<V>>, ElementProblem> {
        let rank = at.rank;
        let (src, dst) = (step.src, step.dst);
        match step.kind {
            Kind::Send => return self.read(at, rank, src, slice),
            Kind::Recv => self.write(at, rank, dst, slice, &received)?,
            Kind::RecvReduce => {
                let cells = self.combine(at, step, slice, &received)?;
                self.write(at, rank, dst, slice, &cells)?;
            }
            Kind::RecvReduceSend => return self.combine(at, step, slice, &received),
            Kind::RecvReduceCopySend => {
                let cells = self.combine(at, step, slice, &received)?;
                self.write(at, rank, dst, slice, &cells)?;
                return Ok(cells);
            }
            Kind::RecvCopySend => {
                self.write(at, rank, dst, slice, &received)?;
                return Ok(received);
            }
            Kind::Copy => {
                let cells = self.read(at, rank, src, whole(src))?;
                self.write(at, rank, dst, whole(dst), &cells)?;
            }
            Kind::Get => {
                let cells = self.read(at, step.recv_from, src, whole(src))?;
                self.write(at, rank, dst, whole(dst), &cells)?;
            }
            Kind::ReduceLocal => {
                let operand = |other: Rank| {
                    let kept = Span::scratch(u64::from(other) * src.len, src.len);
                    (rank, if other == rank { src } else { kept })
                };
                let cells = self.reduce_all(at, whole(src), operand)?;
                self.write(at, rank, dst, whole(dst), &cells)?;
            }
            Kind::GetReduce => self.get_reduce(at, step, rank..rank + 1)?,
            Kind::GetReducePut => self.get_reduce(at, step, 0..self.memories.len() as Rank)?,
            // Signals and waits have no elements; the halves of an exchange are passed as Send and
            // Recv.
            Kind::Signal | Kind::Wait | Kind::SendRecv => {}
        }
        Ok(Vec::new())
    }
}

impl<V: Value> Model for Checker<V> {
    type Message = Envelope<V>;

    fn act(
        &mut self,
        at: ProcessId,
        step: &Step,
        slice: Slice,
        received: Option<Envelope<V>>,
    ) -> Result<Option<Envelope<V>>, Defect> {
        let mut cells = Vec::new();
        if let Some(envelope) = received {
            if let (Some(order), Some(clock)) = (&mut self.order, &envelope.clock) {
                order.receive(at, clock);
                if let Some(Loan { owner, range }) = envelope.loan {
                    order.borrow(at, owner, range);
                }
            }
            cells = envelope.cells;
        }
        let defect = |(element, problem)| Defect::Data {
            rank: at.rank,
            step: *step,
            element,
            problem,
        };
        let cells = self.apply(at, step, slice, cells).map_err(defect)?;
        let loan = self.loan(at.rank, step, slice).map_err(defect)?;
        Ok(step.kind.sends().then(|| Envelope {
            cells,
            clock: self.order.as_mut().map(|order| order.send(at)),
            loan,
        }))
    }
}

/// A step without messages is done as a whole.
fn whole(span: Span) -> Slice {
    Slice {
        offset: 0,
        len: span.len,
    }
}

fn is_one_sided(step: Step) -> bool {
    matches!(step.kind, Kind::Get | Kind::GetReduce | Kind::GetReducePut)
}
