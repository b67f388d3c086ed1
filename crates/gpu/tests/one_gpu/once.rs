//! Each kernel at few sizes, within seconds: `tests/gpu-sanitizers.sh` runs these, in which a
//! kernel takes some hundred times as long.

use std::time::Duration;

use spark_ccl_types::{DType, Operation, ReduceOp};

use crate::kernels::{ALL, by_each_kernel, each};
use crate::place::{Case, Place, WIRES};
use crate::post::{Letter, Post};

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn operations_by_each_kernel() {
    for (ranks, wire) in each([2, 3]) {
        let Some(place) = Place::with(ranks, PATIENCE, wire) else {
            return;
        };
        for (seed, operation) in ALL.into_iter().enumerate() {
            for count in [1, 1003, 20_000] {
                by_each_kernel(&place, case(operation, count, seed as u64));
            }
        }
    }
}

fn case(operation: Operation, count: usize, seed: u64) -> Case {
    Case {
        operation,
        dtype: DType::Bf16,
        op: ReduceOp::Sum,
        root: 1,
        count,
        offset: seed as usize,
        in_place: false,
        seed,
    }
}

#[test]
fn messages_by_each_kernel() {
    for wire in WIRES {
        let Some(place) = Place::with(2, PATIENCE, wire) else {
            return;
        };
        for letters in [1, 20] {
            let of = |number: usize| Letter {
                from: number % 2,
                to: number / 2 % 2,
                bytes: 3001 * number,
            };
            Post::new((0..4 * letters).map(of).collect(), 1).run(&place);
        }
    }
}
