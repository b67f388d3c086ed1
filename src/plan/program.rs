//! The steps of an operation, wherever they come from: a schedule, or steps that are written out.
//! Knows schedules and tables of blocks; knows no memory.

use std::sync::Arc;

use spark_ccl_sched::{Buf, Kind, Rank, Schedule, Span, Step, Steps, Unsupported, all_to_all_v};

use crate::task::Tables;

/// More steps than these are computed one by one, when their turn comes.
const FEW_STEPS: usize = 64;

/// The steps of an operation. A schedule is cheap to clone.
#[derive(Debug, Clone)]
pub(crate) enum Program {
    Schedule(Arc<Planned>),
    /// Steps that are written out, because they depend on more than the shape.
    Blocks(Arc<Blocks>),
    /// The messages of one direction: half of a pair, matched with the peer's by order.
    PointToPoint(Step),
}

impl Program {
    /// The program of a collective that has an algorithm.
    pub(crate) fn schedule(schedule: Schedule) -> Self {
        Self::Schedule(Arc::new(Planned::new(schedule)))
    }

    /// The program of an `all_to_all_v` with these counts and displacements, which were checked.
    pub(crate) fn blocks(own: Rank, tables: &Tables) -> Result<Self, Unsupported> {
        let wide = |table: &[usize]| table.iter().map(|&x| x as u64).collect::<Vec<_>>();
        let (sent, expected) = (wide(&tables.send.counts), wide(&tables.recv.counts));
        let displs = [&tables.send.begins, &tables.recv.begins].map(|begins| wide(begins));
        let steps = all_to_all_v(own, &sent, &displs[0], &expected, &displs[1])?;
        Ok(Self::Blocks(Arc::new(Blocks {
            steps: [0, 1].map(|channel| steps.walk(channel).collect()),
            sent,
            expected,
        })))
    }

    /// Sends `len` elements of the input to `to`.
    pub(crate) fn send(rank: Rank, to: Rank, len: u64) -> Self {
        Self::PointToPoint(Step {
            kind: Kind::Send,
            send_to: to,
            recv_from: rank,
            src: span(Buf::Input, len),
            dst: span(Buf::Output, 0),
            receives_contribution: false,
        })
    }

    /// Receives `len` elements from `from` into the output.
    pub(crate) fn recv(rank: Rank, from: Rank, len: u64) -> Self {
        Self::PointToPoint(Step {
            kind: Kind::Recv,
            send_to: rank,
            recv_from: from,
            src: span(Buf::Input, 0),
            dst: span(Buf::Output, len),
            receives_contribution: false,
        })
    }

    pub(crate) fn channels(&self) -> u32 {
        match self {
            Self::Schedule(planned) => planned.schedule.channels(),
            Self::Blocks(_) => 2,
            Self::PointToPoint(_) => 1,
        }
    }

    pub(crate) fn step(&self, channel: u32, index: u64) -> Option<Step> {
        match self {
            Self::Schedule(planned) => planned.schedule.step(channel, index),
            Self::Blocks(blocks) => {
                let steps = blocks.steps.get(channel as usize)?;
                steps.get(index as usize).copied()
            }
            Self::PointToPoint(step) => (index == 0).then_some(*step),
        }
    }

    /// All steps of a schedule, if they were computed with it.
    #[inline]
    pub(crate) fn few_steps(&self) -> Option<&[Step]> {
        match self {
            Self::Schedule(planned) => planned.few.as_deref(),
            Self::Blocks(_) | Self::PointToPoint(_) => None,
        }
    }

    /// Whether memory stays unwritten once a message was sent from it.
    pub(crate) fn may_lend(&self) -> bool {
        match self {
            Self::Schedule(planned) => planned.schedule.may_lend(),
            // These have a buffer to send from that they only read.
            Self::Blocks(_) | Self::PointToPoint(_) => true,
        }
    }

    /// Whether a rank takes messages of collectives from the links.
    #[inline]
    pub(crate) fn receives(&self) -> bool {
        match self {
            Self::Schedule(planned) => planned.receives,
            // Every two ranks exchange signals.
            Self::Blocks(_) => true,
            Self::PointToPoint(_) => false,
        }
    }

    /// Whether it is one message. It is sent even if it is empty, because it tells the receiver its
    /// length.
    pub(crate) fn is_message(&self) -> bool {
        matches!(self, Self::PointToPoint(_))
    }

    /// Whether it is an `all_reduce`, `all_gather` or `all_to_all` in which every rank sends a
    /// message to every other before it receives from any ([`Schedule::is_exchange`]).
    #[inline]
    pub(crate) fn is_exchange(&self) -> bool {
        matches!(self, Self::Schedule(planned) if planned.is_exchange)
    }

    /// Elements of scratch memory.
    #[inline]
    pub(crate) fn scratch(&self) -> u64 {
        match self {
            Self::Schedule(planned) => planned.scratch,
            Self::Blocks(_) | Self::PointToPoint(_) => 0,
        }
    }
}

/// A schedule, with its steps if they are few and may be done one after the other at once, and what
/// else each call asks: computing these takes a good part of a small call.
#[derive(Debug)]
pub(crate) struct Planned {
    schedule: Schedule,
    few: Option<Box<[Step]>>,
    receives: bool,
    is_exchange: bool,
    scratch: u64,
}

impl Planned {
    fn new(schedule: Schedule) -> Self {
        let few = if schedule.channels() == 1 && !schedule.is_exchange() {
            let steps = (0..).map_while(|index| schedule.step(0, index));
            let steps: Vec<_> = steps.take(FEW_STEPS + 1).collect();
            (steps.len() <= FEW_STEPS).then(|| steps.into())
        } else {
            None
        };
        let receives = (0..schedule.channels()).any(|channel| {
            let mut steps = (0..).map_while(|index| schedule.step(channel, index));
            steps.any(|step| step.kind.receives() && !step.is_empty())
        });
        Self {
            few,
            receives,
            is_exchange: schedule.is_exchange(),
            scratch: schedule.scratch(),
            schedule,
        }
    }
}

fn span(buf: Buf, len: u64) -> Span {
    Span {
        buf,
        offset: 0,
        len,
    }
}

/// An exchange of blocks. Only a block's sender and receiver know its length.
#[derive(Debug)]
pub(crate) struct Blocks {
    /// By channel: the blocks, and signals that say how long they are.
    pub(crate) steps: [Vec<Step>; 2],
    /// By rank: elements that this one sends it, and expects from it.
    pub(crate) sent: Vec<u64>,
    pub(crate) expected: Vec<u64>,
}

#[cfg(test)]
mod tests {
    use spark_ccl_sched::{Shape, schedule};
    use spark_ccl_types::{Algorithm, Operation};

    use super::Program;

    #[test]
    fn a_rank_that_only_sends_is_told_from_one_that_receives() {
        use Algorithm::{Binomial, Direct, DoubleTree, Linear, Ring};
        for (operation, algorithm, rank, count, receives) in [
            (Operation::Broadcast, Binomial, 0, 8, false),
            (Operation::Broadcast, Binomial, 1, 8, true),
            (Operation::Broadcast, DoubleTree, 0, 100_000, false),
            (Operation::Broadcast, DoubleTree, 3, 100_000, true),
            (Operation::Gather, Linear, 0, 8, true),
            (Operation::Gather, Linear, 1, 8, false),
            (Operation::Scatter, Linear, 0, 8, false),
            (Operation::Scatter, Linear, 1, 8, true),
            (Operation::AllReduce, Direct, 1, 8, true),
            (Operation::AllReduce, Ring, 1, 8, true),
            (Operation::AllReduce, Ring, 1, 0, false),
        ] {
            let shape = Shape {
                rank,
                size: 7,
                count,
                root: 0,
                chunk: 8,
                hosts: None,
            };
            let made = schedule(operation, algorithm, false, shape).unwrap();
            let program = Program::schedule(made);
            assert_eq!(
                program.receives(),
                receives,
                "{operation} by {algorithm:?} at {rank}"
            );
        }
    }

    #[test]
    fn few_steps_are_those_of_the_schedule() {
        for (operation, algorithm, size, are_few) in [
            (Operation::Broadcast, Algorithm::Binomial, 2, true),
            (Operation::AllReduce, Algorithm::Ring, 7, true),
            (Operation::Broadcast, Algorithm::DoubleTree, 7, false),
            (Operation::AllReduce, Algorithm::Direct, 2, false),
            (Operation::Gather, Algorithm::Linear, 60, true),
            (Operation::Gather, Algorithm::Linear, 100, false),
        ] {
            let shape = Shape {
                rank: 0,
                size,
                count: 8,
                root: 0,
                chunk: 8,
                hosts: None,
            };
            let made = schedule(operation, algorithm, false, shape).unwrap();
            let program = Program::schedule(made);
            let all: Vec<_> = (0..).map_while(|index| program.step(0, index)).collect();
            let expected = are_few.then_some(&all[..]);
            assert_eq!(program.few_steps(), expected, "{algorithm:?} of {size}");
            assert!(!all.is_empty());
        }
    }
}
