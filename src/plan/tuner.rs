//! Which algorithm a call gets, and why. Knows sizes, settings, measurements and the cost model; knows neither
//! schedules' steps nor memory.

use super::{Choice, Planner};
use spark_ccl_config::Path;
use spark_ccl_sched::Algorithm;
use spark_ccl_types::{Operation, Signature};

/// Vectors up to this size go to everyone at once, while there are few ranks.
const DIRECT_BYTES: u64 = 16 << 10;
const DIRECT_RANKS: u32 = 8;
/// Up to this number of ranks, each gets every other one's block straight from its owner, which takes a link to each.
const PAIRWISE_RANKS: u32 = 32;
/// Vectors up to this size cost more in messages than in bytes.
const SMALL_BYTES: u64 = 64 << 10;
/// The same over TCP, where a message is a system call or two, for two ranks: they send no more
/// bytes in whole vectors than in halves. Measured over loopback: at 16 KiB the ring takes 1.7 times as
/// long as recursive doubling, at 256 KiB 1.1 times, and at 1 MiB as long.
const SMALL_PAIR_BYTES: u64 = 256 << 10;
/// Over TCP, vectors up to this size cost more in the ring's messages than in the waiting between
/// the phases of halving and doubling: by the model. Two ranks have one phase, and halve at all sizes.
const MEDIUM_BYTES: u64 = 1 << 20;
/// Registered memory up to this size costs more in signals than the links' copies.
const ONE_SIDED_BYTES: u64 = 2 << 10;

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

/// Whether a call may become one-sided if its memory is registered. If it may not, the ranks do not check the memory.
pub(super) fn may_be_one_sided(planner: &Planner, signature: Signature) -> bool {
    planner.path == Path::ZeroCopy
        || if planner.algorithms.is_auto() {
            signature.bytes() > ONE_SIDED_BYTES
        } else {
            planner
                .algorithms
                .allows(signature.operation, Algorithm::OneSided)
        }
}

/// What a call may take: algorithms that fit it, and that the user allows.
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

/// Whether a rule may choose the algorithm if no setting asks for it. If hosts have several ranks, halving and doubling
/// is good only if the ranks of a host are consecutive and their number is a power of two, which the model assumes.
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

/// What the cost model finds fastest through links; of those equally fast, the first.
fn modelled(planner: &Planner, signature: Signature, reason: &'static str) -> Choice {
    let time = |algorithm: &Algorithm| planner.estimate(signature, *algorithm);
    let all = Algorithm::of(signature.operation).iter().copied();
    let fastest = all
        .filter(|algorithm| *algorithm != Algorithm::OneSided)
        .filter(|algorithm| competes(planner, signature, *algorithm))
        .min_by(|a, b| time(a).total_cmp(&time(b)));
    Choice {
        algorithm: fastest.unwrap_or(Algorithm::Ring),
        reason,
    }
}

fn through_links(planner: &Planner, signature: Signature, vector: u64) -> Choice {
    if let Some(algorithm) = planner.measured.fastest(signature.operation, vector) {
        return Choice {
            algorithm,
            reason: "measured by spark-perf tune on this machine",
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
    let tcp = !planner.one_host;
    let pair = planner.size == 2;
    let reduces_all = operation == Operation::AllReduce;
    let (algorithm, reason) = if planner.size <= DIRECT_RANKS && vector <= DIRECT_BYTES {
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

#[cfg(test)]
mod tests {
    use super::super::Network;
    use super::*;
    use spark_ccl_config::{Layout, Links, Settings, Tuning, TuningEntry, TuningStep};
    use spark_ccl_sched::Steps;
    use spark_ccl_types::DType;
    use std::collections::BTreeSet;

    fn planner(host_of: &[u32], shm: bool, algorithms: &str, tuning: &Tuning) -> Planner {
        let one_host = shm && host_of.iter().all(|host| *host == host_of[0]);
        let network = if one_host {
            Network::None
        } else {
            Network::Tcp
        };
        joined_by(network, host_of, shm, algorithms, tuning)
    }

    fn joined_by(
        network: Network,
        host_of: &[u32],
        shm: bool,
        algorithms: &str,
        tuning: &Tuning,
    ) -> Planner {
        let mut settings = Settings::default();
        settings.shm = shm;
        let algorithms = algorithms.parse().unwrap();
        Planner::new(0, 0, host_of, &settings, algorithms, tuning, network)
    }

    /// Of a rank among those of these hosts, which rails join.
    fn over_rdma(rails: u32, host_of: &[u32], tuning: &Tuning) -> Planner {
        joined_by(Network::Rdma { rails }, host_of, true, "auto", tuning)
    }

    /// An `all_reduce` of `bytes` bytes.
    fn of(bytes: u64) -> Signature {
        Signature {
            operation: Operation::AllReduce,
            dtype: DType::U8,
            op: 0,
            in_place: false,
            root: 0,
            name: 0,
            count: bytes,
            place: 0,
        }
    }

    fn all_reduce(host_of: &[u32], shm: bool, bytes: u64) -> Algorithm {
        let planner = planner(host_of, shm, "auto", &Tuning::default());
        choose(&planner, of(bytes), false, false).algorithm
    }

    #[test]
    fn links_of_a_kind_have_thresholds() {
        use Algorithm::{Direct, HalvingDoubling, RecursiveDoubling, Ring};
        for (host_of, shm, expected) in [
            (&[0, 0][..], true, [Direct, RecursiveDoubling, Ring, Ring]),
            (
                &[0, 0],
                false,
                [
                    Direct,
                    RecursiveDoubling,
                    RecursiveDoubling,
                    HalvingDoubling,
                ],
            ),
            (
                &[0, 1],
                true,
                [
                    Direct,
                    RecursiveDoubling,
                    RecursiveDoubling,
                    HalvingDoubling,
                ],
            ),
            (
                &[0, 1, 2, 3],
                true,
                [Direct, RecursiveDoubling, HalvingDoubling, Ring],
            ),
            (&[0, 1, 2], true, [Direct, RecursiveDoubling, Ring, Ring]),
        ] {
            let sizes = [1 << 10, 64 << 10, 256 << 10, 64 << 20];
            let chosen = sizes.map(|bytes| all_reduce(host_of, shm, bytes));
            assert_eq!(chosen, expected, "{host_of:?}, shared memory: {shm}");
        }
    }

    #[test]
    fn many_ranks_talk_to_few_others() {
        let of_many = vec![0; 256];
        let planner = planner(&of_many, true, "auto", &Tuning::default());
        for operation in [
            Operation::AllReduce,
            Operation::AllGather,
            Operation::ReduceScatter,
            Operation::Broadcast,
            Operation::Reduce,
            Operation::Barrier,
        ] {
            for bytes in [8, 16 << 10, 1 << 20] {
                let signature = Signature {
                    operation,
                    ..of(bytes)
                };
                let schedule = planner.schedule(signature, false).unwrap();
                let steps = (0..schedule.channels()).flat_map(|channel| schedule.walk(channel));
                let peers: BTreeSet<u32> = steps
                    .flat_map(|step| [step.send_to, step.recv_from])
                    .filter(|&peer| peer != 0)
                    .collect();
                assert!(peers.len() <= 16, "{operation:?}, {bytes} B: {peers:?}");
            }
        }
    }

    #[test]
    fn levels_are_used_where_there_are_levels() {
        let large = |host_of: &[u32]| all_reduce(host_of, true, 16 << 20);
        assert_eq!(large(&[0, 0, 1, 1]), Algorithm::Hierarchical);
        assert_eq!(large(&[0, 1, 0, 1]), Algorithm::Hierarchical);
        assert_eq!(large(&[0, 0, 0, 1, 1, 2, 2, 2]), Algorithm::Hierarchical);
        assert_ne!(large(&[0, 0, 0, 0]), Algorithm::Hierarchical);
        assert_eq!(all_reduce(&[0, 0, 1, 1], true, 8), Algorithm::Direct);
    }

    #[test]
    fn over_rdma_the_model_chooses() {
        use Algorithm::{Direct, HalvingDoubling, Hierarchical, Ring};
        for (host_of, expected) in [
            (&[0, 1][..], [Direct, Direct, Ring]),
            (&[0, 1, 2, 3], [Direct, HalvingDoubling, Ring]),
            (&[0, 0, 1, 1], [Direct, Hierarchical, Hierarchical]),
        ] {
            let planner = over_rdma(2, host_of, &Tuning::default());
            for (bytes, algorithm) in [1 << 10, 64 << 10, 64 << 20].into_iter().zip(expected) {
                let why = planner.explain(of(bytes), false, false).to_string();
                let start = format!("{algorithm} (the fastest of the model over RDMA; modelled: ");
                assert!(why.starts_with(&start), "{host_of:?}, {bytes} B: {why}");
            }
        }
    }

    #[test]
    fn every_rail_makes_the_model_faster() {
        // Of one message; the core that copies longer vectors is slower than two rails.
        let [one, two] = [1, 2].map(|rails| {
            let planner = over_rdma(rails, &[0, 1, 2, 3], &Tuning::default());
            planner.estimate(of(64 << 10), Algorithm::Ring)
        });
        assert!(two < one, "{two} us over two rails, {one} over one");
    }

    #[test]
    fn what_was_measured_over_rdma_wins_there_alone() {
        let layout = Layout {
            links: Links::Rdma,
            ranks: 2,
            hosts: 2,
        };
        let tuning = tuned_for(layout, "all_reduce", &[(100, "double-tree")]);
        let measured = over_rdma(1, &[0, 1], &tuning)
            .explain(of(8), false, false)
            .to_string();
        let words = "double-tree (measured by spark-perf tune";
        assert!(measured.starts_with(words), "{measured}");
        let tcp = planner(&[0, 1], true, "auto", &tuning)
            .explain(of(8), false, false)
            .to_string();
        assert!(tcp.starts_with("direct (small"), "{tcp}");
    }

    fn tuned(collective: &str, steps: &[(u64, &str)]) -> Tuning {
        let layout = Layout {
            links: Links::SharedMemory,
            ranks: 2,
            hosts: 1,
        };
        tuned_for(layout, collective, steps)
    }

    fn tuned_for(layout: Layout, collective: &str, steps: &[(u64, &str)]) -> Tuning {
        let step = |&(up_to, algorithm): &(u64, &str)| TuningStep {
            up_to,
            algorithm: algorithm.parse().unwrap(),
        };
        let mut tuning = Tuning::default();
        tuning.put(TuningEntry {
            layout,
            collective: Operation::from_name(collective).unwrap(),
            steps: steps.iter().map(step).collect(),
        });
        tuning
    }

    #[test]
    fn what_was_measured_for_this_layout_wins() {
        let tuning = tuned("all_reduce", &[(100, "ring"), (5000, "double-tree")]);
        let pair = planner(&[0, 0], true, "auto", &tuning);
        for (bytes, algorithm) in [
            (100, "ring"),
            (101, "double-tree"),
            (1 << 30, "double-tree"),
        ] {
            let why = pair.explain(of(bytes), false, false).to_string();
            assert!(why.starts_with(algorithm), "{why}");
            assert!(why.contains("measured by spark-perf tune"), "{why}");
        }
        let registered = choose(&pair, of(1 << 20), false, true);
        assert_eq!(registered.algorithm, Algorithm::OneSided);
        for other in [
            planner(&[0, 0, 0], true, "auto", &tuning),
            planner(&[0, 0], false, "auto", &tuning),
            planner(&[0, 1], true, "auto", &tuning),
            planner(&[0, 0], true, "direct", &tuning),
            planner(
                &[0, 0],
                true,
                "auto",
                &tuned("broadcast", &[(100, "chain")]),
            ),
            planner(
                &[0, 0],
                true,
                "auto",
                &tuned("all_reduce", &[(100, "one-sided")]),
            ),
            planner(
                &[0, 0],
                true,
                "auto",
                &tuned("all_reduce", &[(100, "chain")]),
            ),
        ] {
            let chosen = choose(&other, of(100), false, false);
            assert_eq!(chosen.algorithm, Algorithm::Direct);
        }
    }

    #[test]
    fn reasons_come_with_the_figures_of_the_best_two() {
        let pair = planner(&[0, 0], true, "ring,direct", &Tuning::default());
        let why = pair.explain(of(64 << 20), false, false).to_string();
        assert!(why.starts_with("ring (large: fewest bytes on every link; modelled: "));
        assert!(why.contains(" us, direct "), "{why}");
        let one = planner(&[0, 0], true, "ring", &Tuning::default());
        let why = one.explain(of(8), false, false).to_string();
        assert!(why.starts_with("ring (the setting of the algorithm asks for it; modelled: "));
        assert!(why.ends_with(" us)") && !why.contains(','), "{why}");
    }
}
