//! Plans a checked call: finds out whether peers reach its memory, chooses its algorithm, and makes
//! its program. Knows tasks, settings and sizes; knows neither engines nor links.

pub(crate) mod measured;
mod place;
mod program;
mod programs;
mod topology;
mod tuner;

use std::fmt;

use measured::Measured;
pub(crate) use program::Program;
pub(crate) use programs::Programs;
use spark_ccl_config::{AlgorithmChoice, Layout, Path, Settings, Tuning, TuningEntry};
use spark_ccl_sched::cost::{Fabric, estimate};
use spark_ccl_sched::{Algorithm, Hosts, Schedule, Shape, Steps, schedule};
use spark_ccl_types::{Operation, Signature, describe};
pub(crate) use topology::Network;
use topology::Topology;

use crate::error::Error;
use crate::task::{Ranks, Task};

/// The algorithm that a collective takes, and why. As text: one line.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Explanation {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Why this one.
    pub reason: &'static str,
    /// The cost model's time for it, in microseconds.
    pub modelled_us: f64,
    /// The next best algorithm by the cost model, with its microseconds.
    pub next_best: Option<(Algorithm, f64)>,
    /// Whether devices read messages of 32 KiB and more from registered memory.
    pub lends: bool,
    /// The number of threads of this rank that help to copy and reduce, and its bound; `None` for
    /// calls that are too short.
    pub helpers: Option<String>,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (algorithm, reason, us) = (self.algorithm, self.reason, self.modelled_us);
        write!(f, "{algorithm} ({reason}; modelled: {us:.1} us")?;
        if let Some((next, us)) = self.next_best {
            write!(f, ", {next} {us:.1} us")?;
        }
        f.write_str(")")?;
        if self.lends {
            f.write_str(", zero-copy between devices for messages of 32 KiB and more")?;
        }
        if let Some(helpers) = &self.helpers {
            write!(f, ", {helpers}")?;
        }
        Ok(())
    }
}

/// Makes the plans of a communicator, and has all that they depend on.
#[derive(Debug)]
pub(crate) struct Planner {
    /// The number of this rank's communicator among all that the process makes. Unlike the context,
    /// which all ranks share, it tells ranks of one process apart.
    pub(crate) communicator: u64,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) slot_bytes: usize,
    pub(crate) slots: usize,
    pub(crate) path: Path,
    pub(crate) algorithms: AlgorithmChoice,
    /// Whether all ranks share memory.
    pub(crate) all_share_memory: bool,
    /// Whether some ranks reach each other by way of others only.
    has_ways_round: bool,
    topology: Topology,
    /// The links' costs, as the model assumes them.
    fabric: Fabric,
    /// The hosts as this rank sees them.
    hosts: Hosts,
    measured: Measured<Algorithm>,
}

/// A chosen algorithm, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Choice {
    algorithm: Algorithm,
    reason: &'static str,
}

impl Planner {
    /// The planner of a rank among ranks on these hosts.
    pub(crate) fn new<H: Ord>(
        communicator: u64,
        rank: u32,
        host_of: &[H],
        settings: &Settings,
        algorithms: AlgorithmChoice,
        tuning: &Tuning,
        network: Network,
    ) -> Self {
        let topology = Topology::new(host_of, settings.shm, network);
        let all_share_memory = network == Network::None;
        let slot_bytes = settings.slot_bytes(all_share_memory);
        Self {
            communicator,
            rank,
            size: topology.ranks,
            slot_bytes,
            slots: settings.slots,
            path: settings.path,
            algorithms,
            all_share_memory,
            has_ways_round: false,
            fabric: topology.fabric(slot_bytes),
            measured: measured(tuning, topology.layout()),
            topology,
            hosts: Hosts::of_all(host_of)[rank as usize],
        }
    }

    /// Sets whether some ranks reach each other by way of others only. Alike on all ranks.
    pub(crate) fn with_ways_round(self, has_ways_round: bool) -> Self {
        Self {
            has_ways_round,
            ..self
        }
    }

    /// This rank, and how many there are.
    pub(crate) fn ranks(&self) -> Ranks {
        Ranks {
            own: self.rank as usize,
            size: self.size as usize,
        }
    }

    /// The algorithm for a call, and why.
    pub(crate) fn explain(
        &self,
        signature: Signature,
        in_place: bool,
        zero_copy: bool,
    ) -> Explanation {
        let Choice { algorithm, reason } = tuner::choose(self, signature, in_place, zero_copy);
        let others = tuner::candidates(self, signature, in_place, zero_copy);
        let next_best = others
            .filter(|other| *other != algorithm && tuner::competes(self, signature, *other))
            .map(|other| (other, self.estimate(signature, other)))
            .min_by(|(_, a), (_, b)| a.total_cmp(b));
        Explanation {
            algorithm,
            reason,
            modelled_us: self.estimate(signature, algorithm),
            next_best,
            lends: false,
            helpers: None,
        }
    }

    /// Whether a call's messages may be left where they lie.
    pub(crate) fn may_lend(&self, signature: Signature, in_place: bool) -> bool {
        let Choice { algorithm, .. } = tuner::choose(self, signature, in_place, false);
        let shape = self.shape(signature);
        let schedule = schedule(signature.operation, algorithm, in_place, shape);
        schedule.is_ok_and(|schedule| schedule.may_lend())
    }

    /// Whether every rank reaches every other one's RDMA devices.
    pub(crate) fn over_rdma(&self) -> bool {
        self.topology.network.is_rdma()
    }

    /// The placement of the ranks.
    pub(crate) fn layout(&self) -> Layout {
        self.topology.layout()
    }

    /// Finds out where a checked task's memory is, and narrows its buffers to what its steps use.
    #[inline]
    pub(crate) fn locate(&self, task: &mut Task) -> Result<(), Error> {
        task.narrow(self.rank);
        let place = place::place(task, self)?;
        task.signature.place = place;
        // For some operations, either all ranks must be in place or none.
        let rule = task.operation().in_place();
        task.signature.in_place = task.in_place && rule.binds(self.size as usize, place != 0);
        Ok(())
    }

    /// The steps of a collective that has algorithms.
    pub(crate) fn program(&self, task: &Task) -> Result<Program, Error> {
        let schedule = self.schedule(task.signature, task.in_place)?;
        Ok(Program::schedule(schedule))
    }

    fn schedule(&self, signature: Signature, in_place: bool) -> Result<Schedule, Error> {
        let Choice { algorithm, reason } =
            tuner::choose(self, signature, in_place, signature.place != 0);
        let schedule = schedule(
            signature.operation,
            algorithm,
            in_place,
            self.shape(signature),
        )
        .map_err(|unsupported| Error::Unsupported {
            what: describe(signature.words()),
            reason: unsupported.to_string(),
        })?;
        let path = match algorithm {
            Algorithm::OneSided => "zero-copy path",
            _ if self.over_rdma() && schedule.may_lend() && self.path != Path::Safe => {
                "safe path, zero-copy for registered memory"
            }
            _ => "safe path",
        };
        spark_ccl_log::info!(
            "{}: {algorithm}, {path} ({reason})",
            describe(signature.words())
        );
        Ok(schedule)
    }

    /// The steps of an `all_to_all_v`.
    pub(crate) fn blocks(&self, task: &Task) -> Result<Program, Error> {
        let invalid = |problem: &str| Error::Invalid {
            operation: task.operation().name(),
            problem: problem.to_owned(),
        };
        let tables = task
            .tables
            .as_ref()
            .ok_or_else(|| invalid("no tables of counts"))?;
        Program::blocks(self.rank, tables).map_err(|unsupported| invalid(&unsupported.to_string()))
    }

    fn shape(&self, signature: Signature) -> Shape {
        Shape {
            rank: self.rank,
            size: self.size,
            count: signature.count,
            root: signature.root,
            chunk: self.chunk(signature.dtype.size()),
            hosts: Some(self.hosts),
        }
    }

    /// The cost model's estimate for a call, in microseconds; the same on all ranks.
    fn estimate(&self, signature: Signature, algorithm: Algorithm) -> f64 {
        estimate(
            signature.operation,
            algorithm,
            &self.shape(signature),
            signature.dtype.size() as u64,
            &self.fabric,
        )
    }

    /// Half of what a link accepts while its receiver does nothing, in elements.
    fn chunk(&self, element: usize) -> u64 {
        let slice = self.slot_bytes / element;
        (slice * (self.slots / 2).max(1)) as u64
    }
}

/// The measurements of `spark-perf tune` for ranks that are placed like these.
fn measured(tuning: &Tuning, layout: Layout) -> Measured<Algorithm> {
    tuning.of(layout).filter_map(steps).collect()
}

/// An entry's choices. `None` if one uses no links, or is for another collective.
fn steps(entry: &TuningEntry) -> Option<(Operation, Vec<(u64, Algorithm)>)> {
    let operation = entry.collective;
    let steps = entry.steps.iter().map(|step| (step.up_to, step.algorithm));
    let steps: Vec<_> = steps.collect();
    let is_known = |&(_, algorithm): &(u64, Algorithm)| {
        algorithm != Algorithm::OneSided && Algorithm::of(operation).contains(&algorithm)
    };
    if steps.iter().all(is_known) {
        return Some((operation, steps));
    }
    spark_ccl_log::warn!("measured choices for {operation} name an algorithm that it has not");
    None
}
