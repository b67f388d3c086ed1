//! From a checked call to a schedule: the memory it can use, the algorithm, the plan cache.

mod place;
mod tuner;

pub(crate) use place::Place;

use crate::error::Error;
use crate::signature::{Operation, Signature, describe};
use parking_lot::Mutex;
use spark_ccl_config::{AlgorithmChoice, Path};
use spark_ccl_sched::{Algorithm, Collective, Schedule, Shape, schedule};
use std::collections::HashMap;

/// Plans that are remembered; more than a training step has different calls.
const CACHE_LIMIT: usize = 4096;

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
    cache: Mutex<Cache>,
}

#[derive(Debug, Default)]
struct Cache {
    /// The plan that was used last: training loops repeat themselves.
    last: Option<(Key, Schedule)>,
    all: HashMap<Key, Schedule>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    words: [u64; 2],
    in_place: bool,
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
            cache: Mutex::default(),
        }
    }

    /// The schedule of a call; made once per signature.
    pub(crate) fn schedule(
        &self,
        signature: Signature,
        in_place: bool,
        place: &Place,
    ) -> Result<Schedule, Error> {
        let key = Key {
            words: signature.words(),
            in_place,
        };
        let mut cache = self.cache.lock();
        if let Some((last, schedule)) = cache.last
            && last == key
        {
            return Ok(schedule);
        }
        let known = cache.all.get(&key).copied();
        let schedule = if let Some(schedule) = known {
            schedule
        } else {
            if cache.all.len() >= CACHE_LIMIT {
                cache.all.clear();
            }
            let schedule = self.make(signature, in_place, place)?;
            cache.all.insert(key, schedule);
            schedule
        };
        cache.last = Some((key, schedule));
        Ok(schedule)
    }

    /// The algorithm for a call.
    pub(crate) fn choose(&self, signature: Signature, in_place: bool, zero_copy: bool) -> Choice {
        tuner::choose(self, signature, in_place, zero_copy)
    }

    fn make(&self, signature: Signature, in_place: bool, place: &Place) -> Result<Schedule, Error> {
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
