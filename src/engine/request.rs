//! What a call hands to the engine.

use super::Way;
use crate::buffer::Region;
use spark_ccl_sched::{Buf, Kind, Rank, Schedule, Span, Step, Steps};
use spark_ccl_types::{Operation, Reduction, Signature};
use std::sync::Arc;

/// A checked call that owns its steps.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) task: Task,
    pub(crate) program: Program,
}

/// What a checked call is about.
#[derive(Debug, Clone)]
pub(crate) struct Task {
    pub(crate) signature: Signature,
    pub(crate) input: Region,
    pub(crate) output: Region,
    pub(crate) reduction: Reduction,
    /// In place, with each rank's input in its block of the output: elements of a block.
    pub(crate) input_block: Option<u64>,
}

/// An exchange of blocks whose lengths are known to the ranks at both ends alone.
#[derive(Debug)]
pub(crate) struct Blocks {
    /// By channel: the blocks, and signals that say how long they are.
    pub(crate) steps: [Vec<Step>; 2],
    /// By rank: elements that this one sends it, and expects from it.
    pub(crate) sent: Vec<u64>,
    pub(crate) expected: Vec<u64>,
}

impl Task {
    pub(crate) fn is_on_device(&self) -> bool {
        self.input.site.is_some() || self.output.site.is_some()
    }

    /// Whether peers may write to its output: they do so in this operation alone, if all ranks' buffers are
    /// registered memory of theirs.
    pub(super) fn is_written_by_peers(&self) -> bool {
        self.signature.place != 0 && self.signature.operation == Operation::AllReduce
    }
}

/// Where the steps of an operation come from. A schedule is cheap to clone.
#[derive(Debug, Clone)]
pub(crate) enum Program {
    Schedule(Arc<Schedule>),
    /// Written out, where it depends on more than the shape.
    Blocks(Arc<Blocks>),
    /// One message stream: half of a pair, matched with the peer's by order.
    PointToPoint(Step),
}

impl Program {
    /// `len` elements of the input to `to`.
    pub(crate) fn send(rank: Rank, to: Rank, len: u64) -> Self {
        Self::PointToPoint(Step {
            kind: Kind::Send,
            send_to: to,
            recv_from: rank,
            src: span(Buf::Input, len),
            dst: span(Buf::Output, 0),
        })
    }

    /// `len` elements from `from` to the output.
    pub(crate) fn recv(rank: Rank, from: Rank, len: u64) -> Self {
        Self::PointToPoint(Step {
            kind: Kind::Recv,
            send_to: rank,
            recv_from: from,
            src: span(Buf::Input, 0),
            dst: span(Buf::Output, len),
        })
    }

    pub(crate) fn channels(&self) -> u32 {
        match self {
            Self::Schedule(schedule) => schedule.channels(),
            Self::Blocks(_) => 2,
            Self::PointToPoint(_) => 1,
        }
    }

    pub(crate) fn step(&self, channel: u32, index: u64) -> Option<Step> {
        match self {
            Self::Schedule(schedule) => schedule.step(channel, index),
            Self::Blocks(blocks) => {
                let steps = blocks.steps.get(channel as usize)?;
                steps.get(index as usize).copied()
            }
            Self::PointToPoint(step) => (index == 0).then_some(*step),
        }
    }

    /// Whether nothing is written to memory from which a message was sent.
    pub(super) fn may_lend(&self) -> bool {
        match self {
            Self::Schedule(schedule) => schedule.may_lend(),
            // These have a buffer to send from that they only read.
            Self::Blocks(_) | Self::PointToPoint(_) => true,
        }
    }

    /// Whether it is one message, which moves though it may be empty: its receiver is told of its length.
    pub(super) fn is_message(&self) -> bool {
        matches!(self, Self::PointToPoint(_))
    }

    /// Whether it is an all-reduce in which everyone sends its vector to everyone.
    pub(super) fn is_exchange(&self) -> bool {
        matches!(self, Self::Schedule(schedule) if schedule.is_exchange())
    }

    /// The stream of a point-to-point operation.
    pub(super) fn stream(&self) -> Option<(Rank, Way)> {
        match self {
            Self::PointToPoint(step) if step.kind == Kind::Send => Some((step.send_to, Way::Out)),
            Self::PointToPoint(step) => Some((step.recv_from, Way::In)),
            Self::Schedule(_) | Self::Blocks(_) => None,
        }
    }

    /// Elements of scratch memory.
    pub(crate) fn scratch(&self) -> u64 {
        match self {
            Self::Schedule(schedule) => schedule.scratch(),
            Self::Blocks(_) | Self::PointToPoint(_) => 0,
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
