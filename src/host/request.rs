//! Turns a checked task into requests with their steps: two for a `send_recv`, otherwise one. Knows
//! the plan; knows no links.

use spark_ccl_sched::{Kind, Rank, Step};
use spark_ccl_types::{DType, Operation};

use super::Direction;
use crate::error::Error;
use crate::memory::buffer::Region;
use crate::plan::{Planner, Program, Programs};
use crate::task::{Spec, Task};

/// A task that owns its steps.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) task: Task,
    pub(crate) program: Program,
}

impl Request {
    /// The requests of a checked task: two for a `send_recv`, otherwise one.
    pub(super) fn of(
        task: Task,
        planner: &Planner,
        programs: &mut Programs,
    ) -> Result<(Self, Option<Self>), Error> {
        let own = planner.rank;
        Ok(match task.operation() {
            Operation::Send => (Self::send(task, own), None),
            Operation::Recv => (Self::recv(task, own), None),
            Operation::SendRecv => (Self::send(task.clone(), own), Some(Self::recv(task, own))),
            Operation::AllToAllV => {
                let program = planner.blocks(&task)?;
                (Self { task, program }, None)
            }
            _ => {
                let program = programs.get(planner, &task)?.clone();
                (Self { task, program }, None)
            }
        })
    }

    /// The request of a part of a message, which is the task's input or output. Its signature is
    /// that of the whole.
    #[cfg(feature = "cuda")]
    pub(super) fn of_part(task: Task, direction: Direction, own: Rank) -> Self {
        let program = match direction {
            Direction::Out => Program::send(own, task.to, task.input.len as u64),
            Direction::In => Program::recv(own, task.from, task.output.len as u64),
        };
        Self { task, program }
    }

    /// The receipt of a message whose length and type are still unknown.
    pub(super) fn awaited(from: Rank, own: Rank) -> Self {
        let spec = Spec::new(Operation::Recv, DType::U8);
        let task = spec.task((Region::empty(), Region::empty()));
        Self::recv(Task { from, ..task }, own)
    }

    fn send(mut task: Task, own: Rank) -> Self {
        let len = task.input.len as u64;
        task.signature.count = len;
        task.output = Region::empty();
        let program = Program::send(own, task.to, len);
        Self { task, program }
    }

    fn recv(mut task: Task, own: Rank) -> Self {
        let len = task.output.len as u64;
        task.signature.count = len;
        task.input = Region::empty();
        let program = Program::recv(own, task.from, len);
        Self { task, program }
    }
}

/// The queue of a point-to-point operation.
pub(super) fn pair_of(step: &Step) -> (Rank, Direction) {
    match step.kind {
        Kind::Send => (step.send_to, Direction::Out),
        _ => (step.recv_from, Direction::In),
    }
}
