//! Random calls on random settings against the model.

use proptest::prelude::*;
use proptest::sample::select;
use spark_ccl::{Builder, Communicator, F8E4M3, F8E5M2, ReduceOp, bf16, f16};

use super::buffers::Memory;
use super::collectives_model::{COLLECTIVES, Case};
use super::ranks::run_with;
use super::types::for_every_type;
use super::values::{message, sum_of_messages};

const ALGORITHMS: [&str; 12] = [
    "auto",
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
    "one-sided",
];

fn builders() -> impl Strategy<Value = Builder> {
    let slots = select(vec!["2", "3", "8"]);
    let slot_bytes = select(vec!["64", "128", "4K"]);
    (slots, slot_bytes, select(&ALGORITHMS[..]), any::<bool>()).prop_map(
        |(slots, slot_bytes, algorithm, shm)| {
            Communicator::builder()
                .set("SPARK_CCL_SLOTS", slots)
                .set("SPARK_CCL_SLOT_BYTES", slot_bytes)
                .set("SPARK_CCL_ALGO", algorithm)
                .shared_memory(shm)
        },
    )
}

/// A case and the number of its type.
fn cases(n: usize) -> impl Strategy<Value = (Case, usize)> {
    let count = prop_oneof![0..=2 * n, 0..2000_usize];
    let call = (
        select(&COLLECTIVES[..]),
        select(&ReduceOp::ALL[..]),
        any::<bool>(),
        count,
        0..n,
    );
    (call, 0..5_usize, any::<bool>(), 0..12_usize).prop_map(|(call, offset, registered, dtype)| {
        let (collective, op, in_place, count, root) = call;
        let memory = if registered {
            Memory::Registered
        } else {
            Memory::Ordinary
        };
        let op = if collective.reduces() {
            op
        } else {
            ReduceOp::Sum
        };
        (
            Case {
                collective,
                in_place,
                count,
                op,
                root,
                offset,
                memory,
            },
            dtype,
        )
    })
}

fn check(case: &Case, dtype: usize, comm: &Communicator) {
    let mut number = 0;
    for_every_type!(T => {
        if number == dtype {
            case.check::<T>(comm);
        }
        number += 1;
    });
    assert!(number > dtype);
}

proptest! {
    #![proptest_config(ProptestConfig {
        // PROPTEST_CASES may ask for less.
        cases: ProptestConfig::default().cases.min(96),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_calls_match_the_model(
        builder in builders(),
        (n, cases) in (1..9_usize)
            .prop_flat_map(|n| (Just(n), prop::collection::vec(cases(n), 1..12))),
    ) {
        run_with(&builder, n, |comm| {
            for (case, dtype) in &cases {
                check(case, *dtype, comm);
            }
        });
    }

    /// All calls in flight at once, and waited for in an order of each rank's own.
    #[test]
    fn random_calls_in_flight_match_the_model(
        builder in builders(),
        n in 2..6_usize,
        lengths in prop::collection::vec(0..800_usize, 1..8),
        shuffle in any::<u64>(),
    ) {
        run_with(&builder, n, |comm| {
            let start = |(call, &len): (usize, &usize)| {
                let buffer = message::<u32>(comm.rank(), call, len);
                (call, comm.all_reduce_in_place(buffer, spark_ccl::RedOp::Sum).start().unwrap())
            };
            let mut pending: Vec<_> = lengths.iter().enumerate().map(start).collect();
            for turn in (0..lengths.len()).rev() {
                let pick = (shuffle >> (turn + 8 * comm.rank())) as usize % (turn + 1);
                let (call, pending) = pending.swap_remove(pick);
                let expected = sum_of_messages::<u32>(n, call, lengths[call]);
                assert!(pending.wait().unwrap() == expected, "call {call}");
            }
        });
    }
}
