//! One operation in flight: its task and steps, its number and tag, and how far it is. The queues
//! that it waits in are in `host.rs`.

use std::time::Duration;

use super::execution::{Advance, Execution};
use super::loans::Loans;
use super::pair_tag::PairTag;
use super::request::Request;
use super::run::Run;
use super::wires::Wires;
use super::{Direction, Number, pair_of};
use crate::mesh::POINT_TO_POINT_LANE;
use crate::plan::Program;

/// An operation that is queued or running.
pub(super) struct RunningOp {
    pub(super) request: Request,
    pub(super) sequence: u64,
    pub(super) tag: u64,
    /// The number of its record.
    pub(super) record: Option<u64>,
    /// It receives nothing: it waits until its message can be received.
    pub(super) is_probe: bool,
    /// Its timeout. A timeout that is set later applies to later operations.
    pub(super) limit: Duration,
    /// The lane of the schedule's channel 0; channel 1 has the next one.
    first_lane: usize,
    pub(super) execution: Execution,
    loans: Loans,
}

impl RunningOp {
    pub(super) fn collective(
        request: Request,
        number: Number,
        execution: Execution,
        loans: Loans,
        limit: Duration,
    ) -> Self {
        Self {
            request,
            sequence: number.sequence,
            tag: number.tag,
            record: number.record,
            is_probe: false,
            limit,
            first_lane: 0,
            execution,
            loans,
        }
    }

    /// A point-to-point operation: sends a message to another rank, or receives one.
    pub(super) fn pair(
        request: Request,
        sequence: u64,
        record: Option<u64>,
        limit: Duration,
    ) -> Self {
        let tag = PairTag::new(sequence, &request.task.signature);
        Self {
            request,
            sequence,
            tag: tag.bits(),
            record,
            is_probe: false,
            limit,
            first_lane: POINT_TO_POINT_LANE,
            execution: Execution::default(),
            loans: Loans::default(),
        }
    }

    /// A wait for a message; in no queue.
    pub(super) fn probe(request: Request, limit: Duration) -> Self {
        Self {
            is_probe: true,
            ..Self::pair(request, 0, None, limit)
        }
    }

    pub(super) fn is_pair(&self) -> bool {
        self.first_lane == POINT_TO_POINT_LANE
    }

    /// The direction of a message.
    pub(super) fn direction(&self) -> Direction {
        match &self.request.program {
            Program::PointToPoint(step) => pair_of(step).1,
            _ => Direction::In,
        }
    }

    /// A turn on each channel.
    pub(super) fn advance(&mut self, wires: &mut Wires) -> Advance {
        self.execution.advance(&mut Run {
            task: &self.request.task,
            program: &self.request.program,
            tag: self.tag,
            first_lane: self.first_lane,
            wires,
            loans: &mut self.loans,
        })
    }

    /// Gives up, once nothing in this process touches the operation's memory any more. Lent and
    /// registered memory has been withdrawn: peers may still read it, but discard the bytes. Where
    /// they may write, they are cut off from it.
    pub(super) fn give_up(&mut self, wires: &mut Wires) {
        self.execution.drain(wires);
        let task = &self.request.task;
        if let Some(home) = &task.output.home {
            home.segment.unplug();
            if task.is_written_by_peers()
                && let Some(allocation) = home.segment.allocation()
            {
                allocation.fence();
            }
        }
    }
}
