//! From a checked call to a schedule: the memory it can use, and the algorithm.

mod place;
mod tuner;

pub(crate) use place::Place;

use crate::error::Error;
use crate::signature::{Operation, Signature, describe};
use spark_ccl_config::{AlgorithmChoice, Path};
use spark_ccl_sched::{Algorithm, Collective, Schedule, Shape, schedule};

/// What all plans of a communicator depend on.
#[derive(Debug)]
pub(crate) struct Planner {
    /// The communicator.
    pub(crate) context: u64,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) slot_bytes: usize,
    pub(crate) slots: usize,
    pub(crate) path: Path,
    pub(crate) algorithms: AlgorithmChoice,
    /// Whether all ranks share memory.
    pub(crate) one_host: bool,
}

/// A chosen algorithm, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) algorithm: Algorithm,
    pub(crate) reason: &'static str,
}

impl Planner {
    pub(crate) fn new(
        context: u64,
        rank: u32,
        size: u32,
        settings: &spark_ccl_config::Settings,
        one_host: bool,
    ) -> Self {
        Self {
            context,
            rank,
            size,
            slot_bytes: settings.slot_bytes(one_host),
            slots: settings.slots,
            path: settings.path,
            algorithms: settings.algo.clone(),
            one_host,
        }
    }

    /// The algorithm for a call.
    pub(crate) fn choose(&self, signature: Signature, in_place: bool, zero_copy: bool) -> Choice {
        tuner::choose(self, signature, in_place, zero_copy)
    }

    /// The schedule of a call.
    pub(crate) fn schedule(
        &self,
        signature: Signature,
        in_place: bool,
        place: &Place,
    ) -> Result<Schedule, Error> {
        let choice = self.choose(signature, in_place, place.is_registered());
        tracing::info!(
            "{}: {}, {} path ({})",
            describe(signature.words()),
            choice.algorithm,
            if choice.algorithm == Algorithm::OneSided {
                "zero-copy"
            } else {
                "safe"
            },
            choice.reason
        );
        let shape = Shape {
            rank: self.rank,
            size: self.size,
            count: signature.count,
            root: signature.root,
            chunk: self.chunk(signature.dtype.size()),
            hosts: None,
        };
        schedule(
            collective(signature.operation),
            choice.algorithm,
            in_place,
            shape,
        )
        .map_err(|unsupported| Error::Unsupported {
            what: describe(signature.words()),
            reason: unsupported.to_string(),
        })
    }

    /// Half of what a link takes without its receiver, in elements.
    fn chunk(&self, element: usize) -> u64 {
        let slice = self.slot_bytes / element;
        (slice * (self.slots / 2).max(1)) as u64
    }
}

/// The collective of an operation that has schedules.
pub(crate) fn collective(operation: Operation) -> Collective {
    match operation {
        Operation::AllReduce => Collective::AllReduce,
        Operation::AllGather => Collective::AllGather,
        Operation::ReduceScatter => Collective::ReduceScatter,
        Operation::Broadcast => Collective::Broadcast,
        Operation::Reduce => Collective::Reduce,
        Operation::Gather => Collective::Gather,
        Operation::Scatter => Collective::Scatter,
        Operation::AllToAll | Operation::AllToAllV => Collective::AllToAll,
        Operation::Barrier
        | Operation::Alloc
        | Operation::Send
        | Operation::Recv
        | Operation::SendRecv => Collective::Barrier,
    }
}
