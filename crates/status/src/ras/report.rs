//! The report that a client gets, in the structure of NCCL's JSON. Fields that NCCL lacks are in
//! objects named `spark_ccl`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use spark_ccl_types::Operation;

/// The key in [`RankMore::calls`] for the library's own calls.
pub const INTERNAL: &str = "internal";

/// A report on the communicators of a program, with the versions of its software.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The library and its version.
    pub nccl_version: String,
    /// 0: this library needs no CUDA.
    pub cuda_runtime_version: i32,
    /// Always 0: this library needs no CUDA.
    pub cuda_driver_version: i32,
    /// When the ranks were asked: `YYYY-MM-DD hh:mm:ss` in UTC.
    pub timestamp: String,
    /// The length of what follows.
    pub communicators_count: usize,
    /// The communicators of the process that answers.
    pub communicators: Vec<Communicator>,
    /// How the ranks were asked.
    pub ras: Collection,
}

/// How the ranks were asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Collection {
    /// How long it took.
    pub collection_time_sec: f64,
    /// How many communicators have ranks that did not answer in time.
    pub timeouts_count: usize,
}

/// A communicator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Communicator {
    /// Its context, as a hexadecimal number.
    pub hash: String,
    /// The context of its world, then 0.
    pub secondary_hash: String,
    /// How many ranks it has.
    pub size: u32,
    /// How many have answered.
    pub ranks_count: usize,
    /// How many have not.
    pub missing_ranks_count: usize,
    /// The ranks that have answered.
    pub ranks: Vec<Rank>,
    /// The ranks that have not.
    pub missing_ranks: Vec<Missing>,
    /// What NCCL does not tell.
    #[serde(default)]
    pub spark_ccl: CommunicatorMore,
}

/// Facts about a communicator that NCCL does not tell.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct CommunicatorMore {
    /// Why it failed, if it did.
    pub fault: Option<String>,
}

/// A rank that has answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rank {
    /// Its number.
    pub rank: u32,
    /// The name of its host.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// -1: ranks are not bound to GPUs here.
    pub cuda_dev: i32,
    /// Always -1: ranks are not bound to GPUs here.
    pub nvml_dev: i32,
    /// Its state.
    pub status: RankStatus,
    /// The number of collectives that it has called, of the kinds that NCCL counts.
    pub collective_counts: Counts,
    /// What NCCL does not tell.
    #[serde(default)]
    pub spark_ccl: RankMore,
}

/// The state of a rank. Numbers are NCCL's results: 0 is success.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RankStatus {
    /// The state of its initialisation. Always 0: a rank that is still connecting does not answer.
    pub init_state: i32,
    /// The state of its communicator.
    pub async_error: i32,
    /// Whether it has begun to leave. Always false: a rank that leaves does not answer.
    pub finalize_called: bool,
    /// Always false: a rank that has left does not answer.
    pub destroy_flag: bool,
    /// Whether its communicator was aborted.
    pub abort_flag: bool,
}

/// How many collectives a rank has called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the names of collectives")]
pub struct Counts {
    pub broadcast: u64,
    pub reduce: u64,
    pub all_gather: u64,
    pub reduce_scatter: u64,
    pub all_reduce: u64,
}

/// Facts about a rank that NCCL does not tell.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RankMore {
    /// The number of the collective that it has called last; 0 before the first.
    pub entered: u64,
    /// The number of the last one that it has finished.
    pub finished: u64,
    /// The collective that it has called last.
    pub call: Option<String>,
    /// The call in which it has waited for a while, if any.
    pub waits: Option<Wait>,
    /// How long other ranks have waited in a collective that it has not called yet.
    pub late_sec: Option<f64>,
    /// Its calls by operation, on all memory; the library's own are under [`INTERNAL`].
    pub calls: BTreeMap<String, u64>,
}

/// The call in which a rank waits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Wait {
    /// The number of the collective; `None` for a message or a call on devices, which are numbered
    /// apart.
    pub sequence: Option<u64>,
    /// The call.
    pub call: String,
    /// The rank that it waits for, if it knows.
    pub for_rank: Option<u32>,
    /// For how long.
    pub sec: f64,
}

/// A rank that has not answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Missing {
    /// Its number.
    pub rank: u32,
    /// The name of its host.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// Always -1: ranks are not bound to GPUs here.
    pub cuda_dev: i32,
    /// Always -1: ranks are not bound to GPUs here.
    pub nvml_dev: i32,
    /// Why it has not.
    pub status: MissingStatus,
}

/// Why a rank has not answered. If neither is set, it has left the communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingStatus {
    /// It did not answer in time.
    pub unresponsive: bool,
    /// It has died, or is lost.
    pub considered_dead: bool,
}

impl Report {
    /// A report on these communicators. `library` is the library with its version.
    pub fn new(
        library: &str,
        timestamp: String,
        mut communicators: Vec<Communicator>,
        collection_time_sec: f64,
    ) -> Self {
        let is_late = |it: &&Communicator| it.missing_ranks.iter().any(Missing::is_silent);
        let timeouts_count = communicators.iter().filter(is_late).count();
        communicators.iter_mut().for_each(Communicator::find_late);
        Self {
            nccl_version: library.to_owned(),
            cuda_runtime_version: 0,
            cuda_driver_version: 0,
            timestamp,
            communicators_count: communicators.len(),
            communicators,
            ras: Collection {
                collection_time_sec,
                timeouts_count,
            },
        }
    }

    /// As JSON, with the line breaks that NCCL has.
    ///
    /// # Errors
    /// None that is known: the report has text keys and finite numbers only.
    pub fn json(&self) -> Result<String, serde_json::Error> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        Ok(text)
    }

    /// Reads a report.
    ///
    /// # Errors
    /// The text's problem.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }
}

impl Communicator {
    /// A communicator of `size` ranks, which have answered or not.
    pub fn new(
        hash: u64,
        world: u64,
        size: u32,
        ranks: Vec<Rank>,
        missing_ranks: Vec<Missing>,
    ) -> Self {
        Self {
            hash: format!("0x{hash:x}"),
            secondary_hash: format!("0x{world:x}:0x0"),
            size,
            ranks_count: ranks.len(),
            missing_ranks_count: missing_ranks.len(),
            ranks,
            missing_ranks,
            spark_ccl: CommunicatorMore::default(),
        }
    }

    /// A rank is late if others wait in a collective that it has not called yet.
    fn find_late(&mut self) {
        let waits = self
            .ranks
            .iter()
            .filter_map(|rank| rank.spark_ccl.waits.as_ref());
        let waits: Vec<(u64, f64)> = waits
            .filter_map(|wait| Some((wait.sequence?, wait.sec)))
            .collect();
        for rank in &mut self.ranks {
            let more = &mut rank.spark_ccl;
            let missed = waits
                .iter()
                .filter(|(sequence, _)| *sequence > more.entered);
            more.late_sec = missed.map(|&(_, sec)| sec).reduce(f64::max);
        }
    }
}

impl Missing {
    /// Whether it is expected to answer.
    pub fn is_silent(&self) -> bool {
        self.status.unresponsive && !self.status.considered_dead
    }
}

impl Counts {
    /// The counts of a rank, from its counts by operation code.
    pub fn new(calls: &[u64]) -> Self {
        let of = |operation: Operation| calls.get(usize::from(operation.code())).copied();
        let of = |operation| of(operation).unwrap_or(0);
        Self {
            broadcast: of(Operation::Broadcast),
            reduce: of(Operation::Reduce),
            all_gather: of(Operation::AllGather),
            reduce_scatter: of(Operation::ReduceScatter),
            all_reduce: of(Operation::AllReduce),
        }
    }
}

#[cfg(test)]
mod tests;
