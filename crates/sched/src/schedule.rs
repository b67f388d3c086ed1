//! An algorithm's plan for one rank, and its steps. The caller chooses the algorithm. Knows all
//! algorithms; knows neither links nor memory.

use spark_ccl_types::{Algorithm, Operation};

use crate::algorithms::{
    Direct, Dissemination, Doubling, Halving, Hierarchical, Linear, OneSided, Pairwise, Ring,
    Topology, Tree,
};
use crate::hosts::Hosts;
use crate::shape::{Shape, Unsupported};
use crate::step::{Span, Step};
use crate::steps::Steps;

/// The schedule of one rank for one collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    plan: Plan,
    may_lend: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plan {
    Empty,
    /// The only rank copies its own input to the output.
    SingleRank {
        len: u64,
    },
    Ring(Ring),
    Direct(Direct),
    Doubling(Doubling),
    Halving(Halving),
    Hierarchical(Hierarchical),
    Tree(Tree),
    Linear(Linear),
    Pairwise(Pairwise),
    Dissemination(Dissemination),
    OneSided(OneSided),
}

/// The schedule of `shape.rank`. All ranks must use the same arguments, except for the rank.
///
/// In place means that input and output are the same memory (`all_reduce`, `broadcast`, `reduce`,
/// `all_to_all`). In `all_gather` and `gather`, it means that the input is the rank's own block of
/// the output; in `reduce_scatter` and `scatter`, that the output is the rank's own block of the
/// input.
///
/// A lone rank that reduces has a copy step even in place, because an executor may scale what it
/// reads from the input.
///
/// # Errors
///
/// [`Unsupported`] if the operation does not have the algorithm, or the shape is invalid.
pub fn schedule(
    operation: Operation,
    algorithm: Algorithm,
    in_place: bool,
    mut shape: Shape,
) -> Result<Schedule, Unsupported> {
    let unsupported = |reason| Unsupported {
        operation,
        algorithm,
        reason,
    };
    check(operation, &shape).map_err(unsupported)?;
    if !Algorithm::of(operation).contains(&algorithm) {
        return Err(unsupported("no such combination"));
    }
    if algorithm == Algorithm::OneSided && operation == Operation::AllToAll && in_place {
        return Err(unsupported("everyone would overwrite what others read"));
    }
    if shape.size == 1 {
        let plan = if in_place && !operation.reduces() || !operation.moves_data() {
            Plan::Empty
        } else {
            Plan::SingleRank { len: shape.count }
        };
        return Ok(plan.into());
    }
    if shape.count == 0 && operation.moves_data() {
        return Ok(Plan::Empty.into());
    }
    // A round cannot use a longer chunk, and this bound keeps later products from overflowing.
    shape.chunk = shape.chunk.min(shape.count.max(1));
    let plan = among_several(operation, algorithm, in_place, &shape);
    plan.map(|plan| Schedule {
        plan,
        may_lend: match (operation, algorithm) {
            // The received block replaces the block that is sent in the same step.
            (Operation::AllToAll, _) => !in_place,
            (Operation::AllReduce, Algorithm::Direct | Algorithm::RecursiveDoubling) => false,
            _ => true,
        },
    })
    .ok_or_else(|| unsupported("no such combination"))
}

/// The plan of the algorithm's family, where several ranks have data. `None` if it does not do the
/// operation.
fn among_several(
    operation: Operation,
    algorithm: Algorithm,
    in_place: bool,
    shape: &Shape,
) -> Option<Plan> {
    let tree = |topology| Tree::new(operation, topology, in_place, shape).map(Plan::Tree);
    match algorithm {
        Algorithm::Ring => Ring::new(operation, in_place, shape).map(Plan::Ring),
        Algorithm::Direct => Direct::new(operation, in_place, shape).map(Plan::Direct),
        Algorithm::RecursiveDoubling => Some(Plan::Doubling(Doubling::new(shape))),
        Algorithm::HalvingDoubling => Some(Plan::Halving(Halving::new(shape))),
        Algorithm::Hierarchical => {
            let hosts = shape.hosts.unwrap_or(Hosts::one(shape.rank, shape.size));
            Some(Plan::Hierarchical(Hierarchical::new(hosts, shape)))
        }
        Algorithm::Binomial => tree(Topology::Binomial),
        Algorithm::DoubleTree => tree(Topology::DoubleTree),
        Algorithm::Chain => tree(Topology::Chain),
        Algorithm::Pairwise => Pairwise::new(operation, in_place, shape).map(Plan::Pairwise),
        Algorithm::Linear => Linear::new(operation, in_place, shape).map(Plan::Linear),
        Algorithm::Dissemination => Some(Plan::Dissemination(Dissemination::new(shape))),
        Algorithm::OneSided => OneSided::new(operation, in_place, shape).map(Plan::OneSided),
    }
}

impl From<Plan> for Schedule {
    /// A plan that sends nothing.
    fn from(plan: Plan) -> Self {
        Self {
            plan,
            may_lend: true,
        }
    }
}

/// More ranks than any machine has. Sums of a few ranks stay far from overflow.
const MAX_RANKS: u32 = 1 << 24;

fn check(operation: Operation, shape: &Shape) -> Result<(), &'static str> {
    if shape.size > MAX_RANKS {
        return Err("too many ranks");
    }
    if shape.rank >= shape.size {
        return Err("the rank is not below the number of ranks");
    }
    if operation.is_rooted() && shape.root >= shape.size {
        return Err("the root is not below the number of ranks");
    }
    let is_of_others = |hosts: Hosts| !hosts.is_of(shape.rank, shape.size);
    if shape.hosts.is_some_and(is_of_others) {
        return Err("the hosts are those that another rank sees, or of other ranks");
    }
    if shape.chunk == 0 {
        return Err("a chunk must have at least one element");
    }
    if shape.count.checked_mul(u64::from(shape.size)).is_none() {
        return Err("more elements than a u64 counts");
    }
    Ok(())
}

impl Schedule {
    /// Whether it is one exchange: every rank sends a message to every other rank, starting with
    /// the next one. It has the whole input, or in an `all_to_all` the block for that rank. Then
    /// the rank receives one from every other rank. All are reduced in rank order to the output, or
    /// stored side by side. The own one is stored first, if it is not there yet, then the blocks of
    /// the ranks before this one, the closest first. An executor may do all of it at once instead
    /// of step by step.
    #[inline]
    pub fn is_exchange(&self) -> bool {
        matches!(&self.plan, Plan::Direct(direct) if direct.is_exchange())
    }
}

impl Steps for Schedule {
    fn channels(&self) -> u32 {
        match self.plan {
            Plan::Tree(tree) => tree.channels(),
            _ => 1,
        }
    }

    fn scratch(&self) -> u64 {
        match self.plan {
            Plan::Direct(direct) => direct.scratch(),
            Plan::Tree(tree) => tree.scratch(),
            _ => 0,
        }
    }

    fn may_lend(&self) -> bool {
        self.may_lend
    }

    fn step(&self, channel: u32, index: u64) -> Option<Step> {
        if let Plan::Tree(tree) = &self.plan {
            return tree.step(channel, index);
        }
        if channel != 0 {
            return None;
        }
        match &self.plan {
            Plan::Empty | Plan::Tree(_) => None,
            Plan::SingleRank { len } => (index == 0 && *len > 0)
                .then(|| Step::copy(0, Span::input(0, *len), Span::output(0, *len))),
            Plan::Ring(ring) => ring.step(index),
            Plan::Direct(direct) => direct.step(index),
            Plan::Doubling(doubling) => doubling.step(index),
            Plan::Halving(halving) => halving.step(index),
            Plan::Hierarchical(hierarchical) => hierarchical.step(index),
            Plan::Linear(linear) => linear.step(index),
            Plan::Pairwise(pairwise) => pairwise.step(index),
            Plan::Dissemination(dissemination) => dissemination.step(index),
            Plan::OneSided(one_sided) => one_sided.step(index),
        }
    }
}
