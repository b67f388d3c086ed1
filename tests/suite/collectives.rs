//! Every collective against a naive model: types, operations, rank counts, lengths, transports.

use spark_ccl::{
    Algorithm, Carrier, Communicator, F8E4M3, F8E5M2, Operation, RedOp, ReduceOp, bf16, f16,
};

use super::collectives_model::{COLLECTIVES, Case};
use super::ranks::{connected, each, narrow, run, run_with};
use super::types::{Number, for_every_type};

const RANKS: [usize; 6] = [1, 2, 3, 5, 7, 8];

/// Every collective, in place and out of place, each with the operations that make sense.
fn cases(count: usize) -> impl Iterator<Item = Case> {
    COLLECTIVES.into_iter().flat_map(move |collective| {
        let ops = if collective.reduces() {
            &ReduceOp::ALL[..]
        } else {
            &ReduceOp::ALL[..1]
        };
        ops.iter().flat_map(move |&op| {
            [false, true].map(|in_place| Case {
                in_place,
                op,
                ..Case::new(collective, count)
            })
        })
    })
}

/// The case with the first, the last and a middle root, where the root matters.
fn with_roots(case: Case, n: usize) -> impl Iterator<Item = Case> {
    let mut roots = vec![0, n / 2, n - 1];
    roots.dedup();
    roots.truncate(if case.collective.is_rooted() { 3 } else { 1 });
    roots.into_iter().map(move |root| Case { root, ..case })
}

fn check_lengths<T: Number>(comm: &Communicator, lengths: &[usize]) {
    let n = comm.size();
    for &count in lengths {
        for case in cases(count).flat_map(|case| with_roots(case, n)) {
            case.check::<T>(comm);
        }
    }
}

#[test]
fn every_type_and_operation() {
    for n in RANKS {
        run(n, |comm| {
            for case in cases(n + 1).chain(cases(257)) {
                let case = Case {
                    root: n / 2,
                    offset: 1,
                    ..case
                };
                for_every_type!(T => case.check::<T>(comm));
            }
        });
    }
}

#[test]
fn every_length_around_the_number_of_ranks() {
    for n in RANKS {
        run(n, |comm| {
            let lengths = [0, 1, 2, n - 1, n, n + 1, 2 * n + 1, 1009];
            check_lengths::<f32>(comm, &lengths);
            check_lengths::<u8>(comm, &lengths);
        });
    }
}

#[test]
fn more_than_a_slot_and_more_than_a_round() {
    for n in [2, 3] {
        run(n, |comm| {
            // Slots of 64 KiB, rounds of 256 KiB.
            for count in [16_385, 20_001, 100_003, 300_007] {
                for collective in COLLECTIVES {
                    for in_place in [false, true] {
                        let case = Case {
                            in_place,
                            root: n - 1,
                            ..Case::new(collective, count)
                        };
                        case.check::<f32>(comm);
                    }
                }
            }
        });
    }
}

#[test]
fn many_rounds_through_narrow_links() {
    for n in [2, 3, 4, 5, 8] {
        run_with(&narrow(), n, |comm| {
            check_lengths::<i32>(comm, &[31, 32, 33, 1009]);
            check_lengths::<f64>(comm, &[15, 17, 509]);
        });
    }
}

#[test]
fn over_sockets_between_threads() {
    for n in [2, 3, 5] {
        let builder = Communicator::builder().shared_memory(false);
        run_with(&builder, n, |comm| {
            check_lengths::<f32>(comm, &[0, 1, n, 1009, 40_001]);
            check_lengths::<u8>(comm, &[n + 1, 70_001]);
        });
    }
}

#[test]
fn over_tcp_from_a_unique_id() {
    let builder = Communicator::builder()
        .shared_memory(false)
        .set("SPARK_CCL_SOCKETS", "3");
    let comms = connected(&builder, 3);
    each(comms, |comm| {
        let next = (comm.rank() + 1) % 3;
        assert_eq!(comm.links()[next].carrier, Carrier::Tcp);
        check_lengths::<f32>(&comm, &[0, 1, 3, 1009, 40_001]);
        comm.finalize().unwrap();
    });
}

#[test]
fn over_shared_memory_from_a_unique_id() {
    let comms = connected(&Communicator::builder(), 3);
    each(comms, |comm| {
        let next = (comm.rank() + 1) % 3;
        assert_eq!(comm.links()[next].carrier, Carrier::SharedMemory);
        check_lengths::<f32>(&comm, &[0, 1, 3, 1009, 40_001]);
        comm.finalize().unwrap();
    });
}

#[test]
fn every_algorithm_that_can_be_asked_for() {
    let algorithms = [
        "ring",
        "direct",
        "recursive-doubling",
        "halving-doubling",
        "hierarchical",
        "binomial",
        "double-tree",
        "chain",
        "pairwise",
        "linear",
    ];
    for algorithm in algorithms {
        for n in [2, 3, 7] {
            let builder = narrow().set("SPARK_CCL_ALGO", algorithm);
            run_with(&builder, n, |comm| {
                check_lengths::<i64>(comm, &[1, n + 1, 203]);
            });
        }
    }
}

#[test]
fn the_asked_for_algorithm_is_taken() {
    let builder = Communicator::builder().set("SPARK_CCL_ALGO", "all_reduce:double-tree");
    run_with(&builder, 2, |comm| {
        let taken = comm
            .explain(Operation::AllReduce, spark_ccl::DType::F32, 10, false)
            .unwrap();
        assert_eq!(taken.algorithm, Algorithm::DoubleTree, "{taken}");
        let other = comm
            .explain(Operation::AllGather, spark_ccl::DType::F32, 10, false)
            .unwrap();
        assert_ne!(other.algorithm, Algorithm::DoubleTree, "{other}");
    });
}

/// Rounded sums, whose bits depend on the order of reduction.
fn rounded_bits(comm: &Communicator, count: usize) -> Vec<u32> {
    let value = |i: usize| {
        let x = (i * 7919 + comm.rank() * 104_729) % 65_537;
        (x as f32).sqrt() * if x.is_multiple_of(2) { 1e-3 } else { 1e3 }
    };
    let send: Vec<f32> = (0..count).map(value).collect();
    let mut recv = vec![0.0; count];
    comm.all_reduce(&send, &mut recv, RedOp::Avg).run().unwrap();
    recv.into_iter().map(f32::to_bits).collect()
}

#[test]
fn all_ranks_get_the_same_bits() {
    let choices = [
        "auto",
        "ring",
        "direct",
        "recursive-doubling",
        "halving-doubling",
        "hierarchical",
        "double-tree",
    ];
    for algorithm in choices {
        for n in [3, 5, 8] {
            let builder = narrow().set("SPARK_CCL_ALGO", algorithm);
            for count in [1, 7, 1009] {
                let results = run_with(&builder, n, |comm| rounded_bits(comm, count));
                for (rank, result) in results.iter().enumerate() {
                    assert!(
                        *result == results[0],
                        "{algorithm}: rank {rank} of {n} differs"
                    );
                }
            }
        }
    }
}

#[test]
fn one_element_needs_no_slice() {
    run(3, |comm| {
        let mut sum = comm.rank() as u64 + 1;
        comm.all_reduce_in_place(&mut sum, RedOp::Sum)
            .run()
            .unwrap();
        assert_eq!(sum, 6);
        let mut all = [0; 3];
        comm.all_gather(&(sum * 10 + comm.rank() as u64), &mut all)
            .run()
            .unwrap();
        assert_eq!(all, [60, 61, 62]);
        let mut first = comm.rank() as f32;
        comm.broadcast_in_place(&mut first, 2).run().unwrap();
        assert_eq!(first.to_bits(), 2_f32.to_bits());
    });
}

#[test]
fn barrier_waits_for_all() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    for n in RANKS {
        let arrived = AtomicUsize::new(0);
        run(n, |comm| {
            for round in 1..=20 {
                arrived.fetch_add(1, Ordering::Relaxed);
                comm.barrier().run().unwrap();
                // A count before a barrier is visible to others after it.
                assert!(arrived.load(Ordering::Relaxed) >= round * n);
                comm.barrier().run().unwrap();
            }
        });
    }
}

#[test]
fn different_collectives_in_a_row_do_not_mix() {
    run_with(&narrow(), 5, |comm| {
        for round in 0..30 {
            let collective = COLLECTIVES[round % COLLECTIVES.len()];
            let case = Case {
                in_place: round % 3 == 0,
                root: round % 5,
                ..Case::new(collective, 1 + round * 17 % 200)
            };
            case.check::<u32>(comm);
            Case::new(Operation::AllReduce, 1).check::<f64>(comm);
        }
    });
}
