//! Chooses a call's algorithm, and says why. Knows sizes, settings, measurements and the cost
//! model; knows neither schedules' steps nor memory.

use spark_ccl_config::Path;
use spark_ccl_sched::Algorithm;
use spark_ccl_types::{Operation, Signature};

use super::measured::MEASURED;
use super::{Choice, Planner};

/// Vectors up to this size go to everyone at once, while there are few ranks.
const DIRECT_BYTES: u64 = 16 << 10;
const DIRECT_RANKS: u32 = 8;
/// Up to this number of ranks, each gets every other one's block straight from its owner, which
/// takes a link to each.
const PAIRWISE_RANKS: u32 = 32;
/// Vectors up to this size cost more in messages than in bytes.
const SMALL_BYTES: u64 = 64 << 10;
/// The same for two ranks over TCP, where a message is a system call or two. Two ranks send no more
/// bytes in whole vectors than in halves. Measured over loopback: at 16 KiB the ring takes 1.7
/// times as long as recursive doubling, at 256 KiB 1.1 times, and at 1 MiB as long.
const SMALL_PAIR_BYTES: u64 = 256 << 10;
/// Over TCP, vectors up to this size cost more in the ring's messages than in the waiting between
/// the phases of halving and doubling: by the model. Two ranks have one phase, and halve at all
/// sizes.
const MEDIUM_BYTES: u64 = 1 << 20;
/// Up to this size, the signals for registered memory cost at least as much as the links' copies;
/// in cold buffers, peers' cache lines cost far more than a slot's. `benches/peers/one_sided.py`
/// measures it.
const ONE_SIDED_BYTES: u64 = 4 << 10;

/// Chooses by size, number of ranks and memory; what the user allows comes first.
pub(super) fn choose(
    planner: &Planner,
    signature: Signature,
    in_place: bool,
    zero_copy: bool,
) -> Choice {
    let best = preferred(planner, signature, zero_copy);
    let mut candidates = candidates(planner, signature, in_place, zero_copy);
    if candidates
        .clone()
        .any(|algorithm| algorithm == best.algorithm)
    {
        return best;
    }
    match candidates.next() {
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

/// Whether calls of an operation may be one-sided if their memory is registered. Otherwise the
/// ranks do not check the memory. At every size: what is wrong with large calls is wrong with small
/// ones.
pub(super) fn may_be_one_sided(planner: &Planner, operation: Operation) -> bool {
    planner.path == Path::ZeroCopy || planner.algorithms.allows(operation, Algorithm::OneSided)
}

/// The algorithms that fit a call, and that the user allows.
pub(super) fn candidates(
    planner: &Planner,
    signature: Signature,
    in_place: bool,
    zero_copy: bool,
) -> impl Iterator<Item = Algorithm> + Clone {
    let operation = signature.operation;
    let fits = move |algorithm: &Algorithm| match algorithm {
        Algorithm::OneSided => zero_copy && !(operation == Operation::AllToAll && in_place),
        _ => true,
    };
    let allowed = move |algorithm: &Algorithm| planner.algorithms.allows(operation, *algorithm);
    let all = Algorithm::of(operation).iter().copied();
    all.filter(fits).filter(allowed)
}

/// Whether the cost model's estimate of an algorithm counts where no setting asks for it. The cost
/// of halving and doubling assumes that the ranks of a host are consecutive, and a power of two. So
/// it does not count where hosts have several ranks, which may be laid out in another way.
pub(super) fn competes(planner: &Planner, signature: Signature, algorithm: Algorithm) -> bool {
    match algorithm {
        Algorithm::Hierarchical => planner.topology.has_levels(),
        Algorithm::HalvingDoubling => !planner.topology.has_levels(),
        Algorithm::DoubleTree => signature.operation != Operation::AllReduce,
        _ => true,
    }
}

/// The best choice, were all algorithms allowed.
fn preferred(planner: &Planner, signature: Signature, zero_copy: bool) -> Choice {
    let vector = signature.bytes();
    let forced = planner.path == Path::ZeroCopy;
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
        let vector = signature.bytes();
        return through_links(planner, signature, vector);
    }
    best
}

/// The algorithm that is fastest through links by the cost model; of equals, the first.
fn modelled(planner: &Planner, signature: Signature, reason: &'static str) -> Choice {
    let all = Algorithm::of(signature.operation).iter().copied();
    let fastest = fastest(planner, signature, all);
    Choice {
        algorithm: fastest.unwrap_or(Algorithm::Ring),
        reason,
    }
}

fn fastest(
    planner: &Planner,
    signature: Signature,
    among: impl Iterator<Item = Algorithm>,
) -> Option<Algorithm> {
    let time = |algorithm: &Algorithm| planner.estimate(signature, *algorithm);
    among
        .filter(|algorithm| *algorithm != Algorithm::OneSided)
        .filter(|algorithm| competes(planner, signature, *algorithm))
        .min_by(|a, b| time(a).total_cmp(&time(b)))
}

/// The fastest algorithm that sends to the next rank or host only. `None` for operations without
/// one.
fn between_neighbours(planner: &Planner, signature: Signature) -> Option<Choice> {
    let all = Algorithm::of(signature.operation).iter().copied();
    let near = all.filter(|algorithm| {
        use Algorithm::{Chain, Hierarchical, Ring};
        matches!(algorithm, Ring | Chain | Hierarchical)
    });
    Some(Choice {
        algorithm: fastest(planner, signature, near)?,
        reason: "between neighbours only: some ranks reach each other by way of others",
    })
}

fn through_links(planner: &Planner, signature: Signature, vector: u64) -> Choice {
    if planner.has_ways_round
        && let Some(choice) = between_neighbours(planner, signature)
    {
        return choice;
    }
    if let Some(algorithm) = planner.measured.fastest(signature.operation, vector) {
        return Choice {
            algorithm,
            reason: MEASURED,
        };
    }
    // Thresholds have not been measured over RDMA.
    if planner.over_rdma() {
        return modelled(planner, signature, "the fastest of the model over RDMA");
    }
    // Sizes alone do not tell where some links are much slower than others.
    if signature.operation == Operation::AllReduce && planner.topology.has_levels() {
        let reason = "the fastest of the model for several hosts of several ranks";
        return modelled(planner, signature, reason);
    }
    by_size(planner, signature.operation, vector)
}

/// The best by size of the vector and number of ranks, as measured on one host and over TCP.
fn by_size(planner: &Planner, operation: Operation, vector: u64) -> Choice {
    let (algorithm, reason) = match operation {
        Operation::AllReduce | Operation::AllGather | Operation::ReduceScatter => {
            return without_root(planner, operation, vector);
        }
        Operation::Broadcast | Operation::Reduce if vector <= SMALL_BYTES => {
            (Algorithm::Binomial, "small: logarithmic number of messages")
        }
        Operation::Broadcast | Operation::Reduce if planner.size > 16 => (
            Algorithm::DoubleTree,
            "large, many ranks: full bandwidth at logarithmic depth",
        ),
        Operation::Broadcast | Operation::Reduce => {
            (Algorithm::Chain, "large, few ranks: one copy per link")
        }
        Operation::Gather | Operation::Scatter => {
            (Algorithm::Linear, "the root's memory is the bottleneck")
        }
        Operation::AllToAll if is_small(planner, vector) => {
            (Algorithm::Direct, "small, few ranks: one message each way")
        }
        Operation::AllToAll => (
            Algorithm::Pairwise,
            "every rank sends and receives at the same time",
        ),
        Operation::Barrier | Operation::Alloc => {
            (Algorithm::Dissemination, "logarithmic number of signals")
        }
        Operation::AllToAllV | Operation::Send | Operation::Recv | Operation::SendRecv => {
            (Algorithm::Pairwise, "it has no schedule")
        }
    };
    Choice { algorithm, reason }
}

/// [`by_size`] of `all_reduce`, `all_gather` and `reduce_scatter`.
fn without_root(planner: &Planner, operation: Operation, vector: u64) -> Choice {
    let tcp = !planner.all_share_memory;
    let pair = planner.size == 2;
    let reduces_all = operation == Operation::AllReduce;
    let (algorithm, reason) = if is_small(planner, vector) {
        (Algorithm::Direct, "small, few ranks: one message each way")
    } else if reduces_all && vector <= SMALL_BYTES {
        (
            Algorithm::RecursiveDoubling,
            "small: fewest rounds of messages",
        )
    } else if operation == Operation::AllGather && !tcp && planner.size <= PAIRWISE_RANKS {
        (
            Algorithm::Pairwise,
            "large, within a host: every rank reads from where it comes from",
        )
    } else if reduces_all && tcp && pair && vector <= SMALL_PAIR_BYTES {
        (
            Algorithm::RecursiveDoubling,
            "not large, two ranks over TCP: fewest messages",
        )
    } else if reduces_all
        && tcp
        && (pair || planner.size.is_power_of_two() && vector <= MEDIUM_BYTES)
    {
        (
            Algorithm::HalvingDoubling,
            "over TCP: few messages, and fewest bytes",
        )
    } else {
        (Algorithm::Ring, "large: fewest bytes on every link")
    };
    Choice { algorithm, reason }
}

/// Whether each rank may send to all before it receives from any.
fn is_small(planner: &Planner, vector: u64) -> bool {
    planner.size <= DIRECT_RANKS && vector <= DIRECT_BYTES
}

#[cfg(test)]
mod tests;
