//! Tests of the choice of algorithms.

use std::collections::BTreeSet;

use spark_ccl_config::{Layout, Links, Settings, Tuning, TuningEntry, TuningStep};
use spark_ccl_sched::Steps;
use spark_ccl_types::DType;

use super::super::Network;
use super::*;

fn planner(host_of: &[u32], shm: bool, algorithms: &str, tuning: &Tuning) -> Planner {
    let all_share_memory = shm && host_of.iter().all(|host| *host == host_of[0]);
    let network = if all_share_memory {
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

/// The planner of a rank among ranks on these hosts, which rails join.
fn over_rdma(rails: u32, host_of: &[u32], tuning: &Tuning) -> Planner {
    joined_by(Network::Rdma { rails }, host_of, true, "auto", tuning)
}

/// An `all_reduce` of `bytes` bytes.
fn of(bytes: u64) -> Signature {
    Signature::plain(Operation::AllReduce, DType::U8, bytes)
}

fn all_reduce(host_of: &[u32], shm: bool, bytes: u64) -> Algorithm {
    let planner = planner(host_of, shm, "auto", &Tuning::default());
    choose(&planner, of(bytes), false, false).algorithm
}

#[test]
fn where_some_ranks_are_reached_by_way_of_others_messages_go_to_neighbours() {
    use Algorithm::{Chain, Dissemination, Hierarchical, Linear, Pairwise, Ring};
    let of = |operation, bytes| Signature {
        operation,
        ..of(bytes)
    };
    let ring = planner(&[0, 1, 2, 3], true, "auto", &Tuning::default()).with_ways_round(true);
    for bytes in [8, 1 << 10, 1 << 20, 1 << 30] {
        for (operation, expected) in [
            (Operation::AllReduce, Ring),
            (Operation::AllGather, Ring),
            (Operation::ReduceScatter, Ring),
            (Operation::Broadcast, Chain),
            (Operation::Reduce, Chain),
        ] {
            let Choice { algorithm, .. } = choose(&ring, of(operation, bytes), false, false);
            assert_eq!(algorithm, expected, "{operation} of {bytes}");
        }
    }
    // These have none between neighbours only.
    for (operation, expected) in [
        (Operation::AllToAll, Pairwise),
        (Operation::Gather, Linear),
        (Operation::Barrier, Dissemination),
    ] {
        let Choice { algorithm, .. } = choose(&ring, of(operation, 1 << 20), false, false);
        assert_eq!(algorithm, expected, "{operation}");
    }
    let levels = planner(&[0, 0, 1, 1, 2, 2, 3, 3], true, "auto", &Tuning::default());
    let levels = levels.with_ways_round(true);
    let Choice { algorithm, .. } = choose(&levels, of(Operation::AllReduce, 1 << 20), false, false);
    assert!([Ring, Hierarchical].contains(&algorithm), "{algorithm}");
    // A program that asks for another one gets it all the same.
    let asked = planner(&[0, 1, 2, 3], true, "direct", &Tuning::default()).with_ways_round(true);
    let Choice { algorithm, .. } = choose(&asked, of(Operation::AllReduce, 1 << 20), false, false);
    assert_eq!(algorithm, Algorithm::Direct);
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
fn small_blocks_go_to_all_at_once() {
    use Algorithm::{Direct, Pairwise};
    let blocks = |bytes| Signature {
        operation: Operation::AllToAll,
        ..of(bytes)
    };
    // The model of RDMA links sets no limit to the ranks.
    for (ranks, small, small_over_rdma) in [
        (2, Direct, Direct),
        (8, Direct, Direct),
        (9, Pairwise, Direct),
    ] {
        let hosts: Vec<u32> = (0..ranks).collect();
        let tuning = Tuning::default();
        for (planner, small) in [
            (planner(&vec![0; hosts.len()], true, "auto", &tuning), small),
            (planner(&hosts, true, "auto", &tuning), small),
            (over_rdma(2, &hosts, &tuning), small_over_rdma),
        ] {
            let chosen = [1 << 10, 64 << 20]
                .map(|bytes| choose(&planner, blocks(bytes), false, false).algorithm);
            assert_eq!(chosen, [small, Pairwise], "{ranks} ranks");
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
fn registered_memory_is_one_sided_from_a_size_on() {
    let pair = planner(&[0, 0], true, "auto", &Tuning::default());
    let algorithm = |bytes| choose(&pair, of(bytes), false, true).algorithm;
    assert_eq!(algorithm(4 << 10), Algorithm::Direct);
    assert_eq!(algorithm((4 << 10) + 4), Algorithm::OneSided);
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
