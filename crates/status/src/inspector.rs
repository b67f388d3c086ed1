//! The formats of NCCL's inspector: a line of JSON for each operation, and text for Prometheus.
//! Opens no file.

mod json;
mod prometheus;

pub use json::line;
pub use prometheus::prometheus;
use spark_ccl_types::Operation;

use crate::entry::Entry;

/// A communicator, as the inspector describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Its context.
    pub context: u64,
    /// This rank's number.
    pub rank: u32,
    /// Its rank in the world, which distinguishes the processes of a job in metrics.
    pub world_rank: u32,
    /// How many ranks it has.
    pub size: u32,
    /// The number of hosts they are on.
    pub nodes: usize,
    /// The name of this host.
    pub host: String,
    /// The process id.
    pub pid: u32,
    /// Slurm's number of the job, if there is one.
    pub job: Option<String>,
}

/// How fast an operation was.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Speed {
    micros: u64,
    /// Algorithm bandwidth in GB/s, as its caller sees it.
    algorithm: f64,
    /// Bus bandwidth in GB/s, comparable with the hardware's for any number of ranks.
    bus: f64,
}

impl Speed {
    /// `None` for an operation that is not done.
    fn of(entry: &Entry, size: u32) -> Option<Self> {
        let nanos = entry.duration()?;
        let ranks = f64::from(size);
        // The bytes that NCCL's inspector and nccl-tests count.
        let (share, factor) = match entry.signature.operation {
            Operation::AllReduce => (1.0, 2.0 * (ranks - 1.0) / ranks),
            Operation::AllGather
            | Operation::ReduceScatter
            | Operation::Gather
            | Operation::Scatter
            | Operation::AllToAll => (ranks, (ranks - 1.0) / ranks),
            Operation::AllToAllV => (1.0, (ranks - 1.0) / ranks),
            _ => (1.0, 1.0),
        };
        let algorithm = entry.bytes() as f64 * share / nanos.max(1) as f64;
        Some(Self {
            micros: nanos / 1000,
            algorithm,
            bus: algorithm * factor,
        })
    }
}

#[cfg(test)]
mod tests;
