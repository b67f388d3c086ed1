//! Lock-step runs with thousands of ranks: nothing deadlocks, and all messages match; with few
//! elements, their sums are right.

use spark_ccl_sched::check::{Case, Sums, check};
use spark_ccl_sched::{Algorithm, lockstep};
use spark_ccl_types::Operation;

fn all_reduce(algorithm: Algorithm, size: u32, count: u64, chunk: u64) -> Case {
    Case {
        operation: Operation::AllReduce,
        algorithm,
        in_place: true,
        size,
        count,
        root: 0,
        chunk,
        slice: chunk,
    }
}

#[test]
fn a_ring_goes_around_4096_ranks() {
    // Blocks of two elements in full rounds, of about one in the last.
    for (size, count, blocks) in [(1000, 2999, 1999), (4096, 4097, 4096)] {
        let case = all_reduce(Algorithm::Ring, size, count, 2);
        let totals = lockstep::run(&case.schedules().unwrap(), case.window()).unwrap();
        assert_eq!(totals.messages, 2 * u64::from(size - 1) * blocks);
    }
}

#[test]
fn trees_and_doubling_reduce_over_4096_ranks() {
    for algorithm in [
        Algorithm::DoubleTree,
        Algorithm::RecursiveDoubling,
        Algorithm::HalvingDoubling,
    ] {
        for size in [4095, 4096] {
            let case = all_reduce(algorithm, size, 61, 2);
            check::<Sums, _>(&case, &case.schedules().unwrap(), case.window()).unwrap();
        }
    }
}

#[test]
fn a_few_elements_go_around_a_large_ring() {
    let case = all_reduce(Algorithm::Ring, 4096, 5, 2);
    check::<Sums, _>(&case, &case.schedules().unwrap(), case.window()).unwrap();
}

#[test]
fn a_barrier_of_4096_ranks_takes_twelve_turns() {
    let case = Case {
        operation: Operation::Barrier,
        algorithm: Algorithm::Dissemination,
        ..all_reduce(Algorithm::Ring, 4096, 0, 1)
    };
    let totals = lockstep::run(&case.schedules().unwrap(), case.window()).unwrap();
    assert_eq!(totals.messages, 12 * 4096);
}
