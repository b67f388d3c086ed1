//! Every collective and algorithm, with up to 64 ranks: each contribution arrives exactly once, all
//! ranks get the same bits, and nothing deadlocks or races.

use spark_ccl_sched::Algorithm;
use spark_ccl_sched::check::{Case, Contributions, check};
use spark_ccl_types::{InPlaceRule, Operation};

/// Small, so that few elements make several rounds. Some algorithms need a chunk per rank in each
/// round.
fn chunk(algorithm: Algorithm, size: u32) -> u64 {
    match algorithm {
        Algorithm::Ring
        | Algorithm::DoubleTree
        | Algorithm::HalvingDoubling
        | Algorithm::Hierarchical => 3,
        _ => 3 + u64::from(size) / 3,
    }
}

/// No elements, fewer than one per rank, about one per rank, and several rounds with an odd
/// remainder.
fn counts(operation: Operation, algorithm: Algorithm, size: u32) -> Vec<u64> {
    let chunk = chunk(algorithm, size);
    let size = u64::from(size);
    let mut counts = match operation {
        Operation::AllReduce
            if matches!(
                algorithm,
                Algorithm::Ring | Algorithm::HalvingDoubling | Algorithm::Hierarchical
            ) =>
        {
            vec![0, 1, size - 1, size, size + 1, 2 * size * chunk + 5]
        }
        // Each rank sends everything to every other, which is slow to check.
        _ if algorithm == Algorithm::Direct => vec![0, 1, chunk, 2 * chunk + 1],
        Operation::AllReduce | Operation::Broadcast | Operation::Reduce => {
            vec![0, 1, size - 1, size, size + 1, 2 * size + 12 * chunk + 2]
        }
        _ if !operation.moves_data() => vec![0],
        _ => vec![0, 1, chunk, 2 * chunk + 1],
    };
    counts.dedup();
    counts
}

fn roots(operation: Operation, size: u32) -> Vec<u32> {
    let mut roots = if operation.is_rooted() {
        vec![0, size / 3, size - 1]
    } else {
        vec![0]
    };
    roots.dedup();
    roots
}

fn cases(operation: Operation, algorithm: Algorithm, size: u32) -> impl Iterator<Item = Case> {
    let places = if operation.in_place() == InPlaceRule::Never {
        &[false][..]
    } else {
        &[false, true]
    };
    places
        .iter()
        .filter(move |in_place| {
            let is_exchange = operation == Operation::AllToAll;
            !(**in_place && is_exchange && algorithm == Algorithm::OneSided)
        })
        .flat_map(move |in_place| {
            roots(operation, size).into_iter().flat_map(move |root| {
                counts(operation, algorithm, size)
                    .into_iter()
                    .map(move |count| Case {
                        operation,
                        algorithm,
                        in_place: *in_place,
                        size,
                        count,
                        root,
                        chunk: chunk(algorithm, size),
                        // Different sizes also have different slices.
                        slice: 1 + u64::from(size) % 5,
                    })
            })
        })
}

fn prove(operation: Operation) {
    for algorithm in Algorithm::of(operation) {
        for size in 1..=64 {
            for case in cases(operation, *algorithm, size) {
                let ranks = case.schedules().unwrap();
                check::<Contributions, _>(&case, &ranks, case.window())
                    .unwrap_or_else(|defect| panic!("{case:?}: {defect}"));
            }
        }
    }
}

/// The collectives side by side, since each takes some seconds.
#[test]
fn every_collective_with_each_of_its_algorithms() {
    std::thread::scope(|scope| {
        for operation in Operation::ALL.into_iter().filter(|it| it.has_schedule()) {
            scope.spawn(move || prove(operation));
        }
    });
}

#[test]
fn algorithms_match_the_table_of_operations() {
    for operation in Operation::ALL {
        let algorithms = Algorithm::of(operation);
        assert_eq!(
            !algorithms.is_empty(),
            operation.has_schedule(),
            "{operation}"
        );
        let is_shared = [false, true]
            .iter()
            .any(|it| operation.shared(*it).is_some());
        let is_one_sided = algorithms.contains(&Algorithm::OneSided);
        assert_eq!(is_one_sided, is_shared, "{operation}");
    }
}
