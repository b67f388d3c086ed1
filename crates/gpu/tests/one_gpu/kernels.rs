//! Every kernel, with all types and reductions, around the sizes where something changes.

use std::time::Duration;

use spark_ccl_gpu::{Kernel, Plan, Wire};
use spark_ccl_types::{DType, Operation, ReduceOp};

use crate::place::{Case, Place};

/// Each number of ranks, over each wire that has kernels of its own.
pub(crate) fn each<const N: usize>(ranks: [usize; N]) -> impl Iterator<Item = (usize, Wire)> {
    let over = |wire| ranks.map(|ranks| (ranks, wire));
    [Wire::Whole, Wire::Host].map(over).into_iter().flatten()
}

const PATIENCE: Duration = Duration::from_secs(5);
const REDUCTIONS: [ReduceOp; 6] = [
    ReduceOp::Sum,
    ReduceOp::Prod,
    ReduceOp::Max,
    ReduceOp::Min,
    ReduceOp::Avg,
    ReduceOp::PreMulSum,
];
const REDUCING: [Operation; 3] = [
    Operation::AllReduce,
    Operation::ReduceScatter,
    Operation::Reduce,
];
pub(crate) const ALL: [Operation; 8] = [
    Operation::AllReduce,
    Operation::ReduceScatter,
    Operation::Reduce,
    Operation::AllGather,
    Operation::AllToAll,
    Operation::Broadcast,
    Operation::Gather,
    Operation::Scatter,
];

/// Runs a case by each kernel that does its operation.
pub(crate) fn by_each_kernel(place: &Place, case: Case) {
    let member = &place.ranks[0].member;
    let bytes = case.block() as u64;
    for kernel in Kernel::ALL {
        let limits = member.limits();
        if kernel.does(case.operation) && kernel.takes(member.ranks()) && kernel.fits(limits.wire) {
            let plan = Plan::of(kernel, bytes, member.ranks(), limits);
            place.run(&case, Some(plan));
        }
    }
}

/// The root is one of the first two ranks.
fn case(operation: Operation, dtype: DType, op: ReduceOp, count: usize, seed: usize) -> Case {
    Case {
        operation,
        dtype,
        op,
        root: seed / 2 % 2,
        count,
        offset: if seed.is_multiple_of(3) {
            8 * seed
        } else {
            seed
        },
        in_place: seed % 4 == 1,
        seed: seed as u64,
    }
}

#[test]
fn all_types_and_reductions_by_all_kernels() {
    for (ranks, wire) in each([2, 3, 4, 7, 8]) {
        let Some(place) = Place::with(ranks, PATIENCE, wire) else {
            return;
        };
        let mut seed = ranks;
        for dtype in DType::ALL {
            for op in REDUCTIONS {
                for bytes in [8, 3000, 60_000] {
                    let count = bytes / dtype.size() + seed % 3;
                    for operation in REDUCING {
                        seed += 1;
                        by_each_kernel(&place, case(operation, dtype, op, count, seed));
                    }
                }
            }
        }
    }
}

/// Where another kernel is taken, a batch is full, or all warps have one.
fn sizes(ranks: usize) -> Vec<usize> {
    let warps = 12 * 16;
    let peers = ranks - 1;
    let mut sizes = vec![1, 8, 32 * 8, 240 * 8, 4 * 32 * 8, 4 * 240 * 8];
    sizes.extend([32 * 8 * warps, 240 * 8 * warps, 3 * 240 * 8 * warps]);
    sizes.extend([64 << 10, 256 << 10, 1 << 20].map(|sent| sent / peers));
    sizes.extend([1 << 20, 2 << 20].map(|bytes| bytes / ranks));
    sizes
}

/// Sizes are what matters here, so each has one of the types: the host computes what is expected of
/// large ones, which takes much longer than the kernels.
#[test]
fn sizes_around_every_crossover_by_their_plans() {
    const REDUCED: [(DType, ReduceOp); 4] = [
        (DType::Bf16, ReduceOp::Sum),
        (DType::F32, ReduceOp::Avg),
        (DType::U8, ReduceOp::Max),
        (DType::I64, ReduceOp::Prod),
    ];
    for (ranks, wire) in each([2, 3, 4, 8]) {
        let Some(place) = Place::with(ranks, PATIENCE, wire) else {
            return;
        };
        let mut seed = ranks;
        for (number, bytes) in sizes(ranks).into_iter().enumerate() {
            let (dtype, op) = REDUCED[(number + ranks) % REDUCED.len()];
            let count = bytes / dtype.size();
            for count in [count.saturating_sub(1), count, count + 1] {
                for operation in ALL {
                    seed += 1;
                    place.run(&case(operation, dtype, op, count, seed), None);
                }
            }
        }
    }
}

/// Between calls of other lengths and kernels, a leader's warps go on counting.
#[test]
fn long_buffers_by_each_kernel_of_two_ranks() {
    for (ranks, wire) in each([2]) {
        let Some(place) = Place::with(ranks, PATIENCE, wire) else {
            return;
        };
        let mut seed = 0;
        for count in [1_000_003, 480, 1_500_000, 1, 240 * 2 * 12 * 16 * 5] {
            for operation in ALL {
                for _ in 0..4 {
                    seed += 1;
                    by_each_kernel(
                        &place,
                        case(operation, DType::F32, ReduceOp::Sum, count, seed),
                    );
                }
            }
        }
    }
}

#[test]
fn buffers_of_any_alignment_by_all_kernels() {
    for (ranks, wire) in each([2, 3]) {
        let Some(place) = Place::with(ranks, PATIENCE, wire) else {
            return;
        };
        for offset in 0..16 {
            for in_place in [false, true] {
                for (seed, operation) in ALL.into_iter().enumerate() {
                    let plain = case(operation, DType::F16, ReduceOp::Sum, 2501, seed);
                    let moved = Case {
                        offset,
                        in_place,
                        root: offset % ranks,
                        ..plain
                    };
                    by_each_kernel(&place, moved);
                }
            }
        }
    }
}

#[test]
fn operations_on_nothing_are_agreed_on_by_all_ranks() {
    let Some(place) = Place::new(3, PATIENCE) else {
        return;
    };
    for (seed, operation) in ALL.into_iter().enumerate() {
        for count in [0, 5, 0, 0] {
            let case = case(operation, DType::I32, ReduceOp::Sum, count, seed);
            place.run(&case, None);
        }
    }
}
