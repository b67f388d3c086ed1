//! Many operations in flight, with ranks that are threads and late at random.

use std::time::Duration;

use spark_ccl_cuda::DeviceBlock;
use spark_ccl_gpu::Call;
use spark_ccl_testing::scramble;
use spark_ccl_types::{DType, Extent, Operation, ReduceOp, Side};

use crate::oracle;
use crate::place::{Place, Rank, WIRES};

/// The operations of a round. Each has its own output.
const CALLS: usize = 200;
/// Bytes of an output.
const PART: usize = 32 << 10;

/// A call of random kind and size; its output is a part of the block.
fn random_call(seed: u64, number: usize, own: &Rank, outputs: &DeviceBlock, ranks: usize) -> Call {
    const OPERATIONS: [Operation; 8] = [
        Operation::AllReduce,
        Operation::ReduceScatter,
        Operation::AllGather,
        Operation::AllToAll,
        Operation::Broadcast,
        Operation::Reduce,
        Operation::Gather,
        Operation::Scatter,
    ];
    let random = scramble(seed, number as u64) as usize;
    let most = if random.is_multiple_of(3) {
        30
    } else {
        PART / 4 / ranks
    };
    Call {
        operation: OPERATIONS[random % 8],
        dtype: DType::U32,
        op: [ReduceOp::Sum, ReduceOp::Max][random / 64 % 2],
        factor: 0,
        is_factor_in_memory: false,
        root: random / 128 % ranks,
        count: random / 1024 % most,
        input: own.input.address() + (random / 8 % 8 * 4) as u64,
        output: outputs.address() + (number * PART) as u64,
        in_place: false,
        words: [number as u64, ranks as u64],
    }
}

/// The values are small numbers, as flags have.
fn input(rank: usize) -> Vec<u32> {
    (0..PART as u32).map(|i| i % 97 + rank as u32).collect()
}

fn expected(call: &Call, seed: u64, number: usize, rank: usize, ranks: usize) -> Vec<u8> {
    let random = scramble(seed, number as u64) as usize;
    let block = match call.operation.extent(Side::Input) {
        Extent::Blocks => rank * call.count,
        _ => 0,
    };
    let begin = random / 8 % 8 + block;
    let parts: Vec<Vec<u8>> = (0..ranks)
        .map(|peer| {
            let part = &input(peer)[begin..begin + call.count];
            part.iter().flat_map(|value| value.to_le_bytes()).collect()
        })
        .collect();
    let parts: Vec<&[u8]> = parts.iter().map(|part| &part[..]).collect();
    match call.operation.at_root() {
        Some(_) if !call.operation.uses(Side::Output, rank == call.root) => Vec::new(),
        _ if call.operation.reduces() => oracle::reduced(call.dtype, call.op, &parts),
        Some(Side::Input) => parts[call.root].to_vec(),
        _ => parts.concat(),
    }
}

#[test]
fn operations_in_flight_of_ranks_that_are_late() {
    for ranks in [2, 3, 4, 8] {
        run_rounds(ranks, 1);
    }
}

#[test]
#[ignore = "takes minutes on GPUs; docs/tests.md has the command"]
fn ten_thousand_operations_of_ranks_that_are_late() {
    for ranks in [2, 3, 4, 8] {
        run_rounds(ranks, 10_000 / CALLS as u64);
    }
}

fn run_rounds(ranks: usize, rounds: u64) {
    for wire in WIRES {
        let Some(place) = Place::with(ranks, Duration::from_secs(5), wire) else {
            return;
        };
        run_rounds_in(&place, rounds);
    }
}

fn run_rounds_in(place: &Place, rounds: u64) {
    let outputs: Vec<_> = (0..place.ranks.len())
        .map(|_| DeviceBlock::new(&place.context, CALLS * PART).unwrap())
        .collect();
    for (rank, own) in place.ranks.iter().enumerate() {
        let input = input(rank);
        // SAFETY: the rank's input has `ROOM`, which is more than `input`, and nothing was enqueued
        // that uses it.
        unsafe { place.copies.write(own.input.address(), &input).unwrap() };
    }
    for round in 0..rounds {
        run_round(place, &outputs, 77 + round);
    }
}

/// Enqueues calls by a thread of each rank, and checks all results.
fn run_round(place: &Place, outputs: &[DeviceBlock], seed: u64) {
    let ranks = place.ranks.len();
    std::thread::scope(|scope| {
        for (rank, own) in place.ranks.iter().enumerate() {
            let outputs = &outputs[rank];
            scope.spawn(move || {
                for number in 0..CALLS {
                    let late = scramble(seed + number as u64, rank as u64);
                    if late.is_multiple_of(10) {
                        std::thread::sleep(Duration::from_micros(late / 16 % 300));
                    }
                    let call = random_call(seed, number, own, outputs, ranks);
                    // SAFETY: input and output of a call lie in buffers of the rank, which live
                    // until `place.wait`. Only this rank's stream uses them, and each call's output
                    // is a part of its own.
                    unsafe { own.member.enqueue(&call, &own.stream).unwrap() };
                }
            });
        }
    });
    place.wait().unwrap();
    for (rank, own) in place.ranks.iter().enumerate() {
        for number in 0..CALLS {
            let call = random_call(seed, number, own, &outputs[rank], ranks);
            let expected = expected(&call, seed, number, rank, ranks);
            let mut seen = vec![0_u8; expected.len()];
            // SAFETY: `seen` is as long as the call's output, and takes any bytes. `place.wait` has
            // waited for all streams, so no kernel writes there.
            unsafe { place.copies.read(call.output, &mut seen).unwrap() };
            assert!(seen == expected, "rank {rank}, call {number}: {call:?}");
        }
    }
}
