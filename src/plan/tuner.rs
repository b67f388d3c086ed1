//! Which algorithm a call gets, and why.

use super::{Choice, Planner, collective};
use crate::signature::{Operation, Signature};
use spark_ccl_sched::{Algorithm, Collective};

/// Vectors up to this size go to everyone at once, while there are few ranks.
const DIRECT_BYTES: u64 = 16 << 10;
const DIRECT_RANKS: u32 = 8;
/// Vectors up to this size cost more in messages than in bytes.
const SMALL_BYTES: u64 = 64 << 10;
/// Registered memory up to this size costs more in signals than the links' copies.
const ONE_SIDED_BYTES: u64 = 2 << 10;

/// What competes where hosts have several ranks; of those equally fast, the first. Halving and
/// doubling is not among them: it is good only where ranks of a host follow one another in powers
/// of two, which the model takes for granted.
const ACROSS_HOSTS: [Algorithm; 4] = [
    Algorithm::Hierarchical,
    Algorithm::Ring,
    Algorithm::RecursiveDoubling,
    Algorithm::Direct,
];

/// Chooses by size, number of ranks and memory; what the user allows comes first.
pub(super) fn choose(
    planner: &Planner,
    signature: Signature,
    in_place: bool,
    zero_copy: bool,
) -> Choice {
    let collective = collective(signature.operation);
    let fits = |algorithm: Algorithm| match algorithm {
        Algorithm::OneSided => zero_copy && !(collective == Collective::AllToAll && in_place),
        _ => true,
    };
    let best = preferred(planner, signature, zero_copy);
    let allowed = |algorithm: Algorithm| {
        planner
            .algorithms
            .allows(signature.operation.name(), &algorithm.to_string())
    };
    if allowed(best.algorithm) && fits(best.algorithm) {
        return best;
    }
    let mut others = collective.algorithms().iter().copied();
    match others.find(|&algorithm| allowed(algorithm) && fits(algorithm)) {
        Some(algorithm) => Choice {
            algorithm,
            reason: "the setting of the algorithm asks for it",
        },
        None => Choice {
            reason: "the setting of the algorithm allows none that fits; ignored",
            ..without_memory(planner, signature, best)
        },
    }
}

/// The best choice, were all algorithms allowed.
fn preferred(planner: &Planner, signature: Signature, zero_copy: bool) -> Choice {
    let vector = signature.count * signature.dtype.size() as u64;
    let forced = planner.path == spark_ccl_config::Path::ZeroCopy;
    if zero_copy && (vector > ONE_SIDED_BYTES || forced) {
        return Choice {
            algorithm: Algorithm::OneSided,
            reason: "all ranks map each other's registered memory",
        };
    }
    through_links(planner, signature, vector)
}

fn without_memory(planner: &Planner, signature: Signature, best: Choice) -> Choice {
    if best.algorithm == Algorithm::OneSided {
        let vector = signature.count * signature.dtype.size() as u64;
        return through_links(planner, signature, vector);
    }
    best
}

/// What the cost model finds fastest; sizes alone do not tell where some links are much slower than
/// others.
fn across_hosts(planner: &Planner, signature: Signature) -> Choice {
    let time = |algorithm: &Algorithm| planner.estimate(signature, *algorithm);
    let fastest = ACROSS_HOSTS
        .into_iter()
        .min_by(|a, b| time(a).total_cmp(&time(b)));
    Choice {
        algorithm: fastest.unwrap_or(Algorithm::Ring),
        reason: "the fastest of the model for several hosts of several ranks",
    }
}

fn through_links(planner: &Planner, signature: Signature, vector: u64) -> Choice {
    if signature.operation == Operation::AllReduce && planner.topology.has_levels() {
        return across_hosts(planner, signature);
    }
    let few = planner.size <= DIRECT_RANKS;
    let choice = |algorithm, reason| Choice { algorithm, reason };
    match signature.operation {
        Operation::AllReduce | Operation::AllGather | Operation::ReduceScatter
            if few && vector <= DIRECT_BYTES =>
        {
            choice(Algorithm::Direct, "small, few ranks: one message each way")
        }
        Operation::AllReduce if vector <= SMALL_BYTES => choice(
            Algorithm::RecursiveDoubling,
            "small: fewest rounds of messages",
        ),
        Operation::AllGather if planner.one_host => choice(
            Algorithm::Pairwise,
            "large, within a host: every rank reads from where it comes from",
        ),
        Operation::AllReduce | Operation::AllGather | Operation::ReduceScatter => {
            choice(Algorithm::Ring, "large: fewest bytes on every link")
        }
        Operation::Broadcast | Operation::Reduce if vector <= SMALL_BYTES => {
            choice(Algorithm::Binomial, "small: logarithmic number of messages")
        }
        Operation::Broadcast | Operation::Reduce if planner.size > 16 => choice(
            Algorithm::DoubleTree,
            "large, many ranks: full bandwidth at logarithmic depth",
        ),
        Operation::Broadcast | Operation::Reduce => {
            choice(Algorithm::Chain, "large, few ranks: one copy per link")
        }
        Operation::Gather | Operation::Scatter => {
            choice(Algorithm::Linear, "the root's memory is the bottleneck")
        }
        Operation::AllToAll | Operation::AllToAllV => choice(
            Algorithm::Pairwise,
            "every rank sends and receives at the same time",
        ),
        _ => choice(Algorithm::Dissemination, "logarithmic number of signals"),
    }
}
