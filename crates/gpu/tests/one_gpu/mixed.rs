//! Many operations in flight, with ranks that are threads and late at random.

use std::time::Duration;

use spark_ccl_cuda::DeviceBlock;
use spark_ccl_gpu::Call;
use spark_ccl_testing::scramble;
use spark_ccl_types::{DType, Operation, ReduceOp};

use crate::oracle;
use crate::place::{Place, Rank};

/// The operations of a round, of which each has its own output.
const CALLS: usize = 200;
/// Bytes of an output.
const PART: usize = 32 << 10;

/// A call of random kind and size; its output is a part of the block.
fn random_call(number: usize, own: &Rank, outputs: &DeviceBlock, ranks: usize) -> Call {
    let random = scramble(number as u64, 77) as usize;
    let operation = [
        Operation::AllReduce,
        Operation::ReduceScatter,
        Operation::AllGather,
        Operation::AllToAll,
    ][random % 4];
    let most = if random.is_multiple_of(3) {
        30
    } else {
        PART / 4 / ranks
    };
    Call {
        operation,
        dtype: DType::U32,
        op: [ReduceOp::Sum, ReduceOp::Max][random / 4 % 2],
        count: 1 + random / 64 % (most - 1),
        input: own.input.address() + (random / 8 % 8 * 4) as u64,
        output: outputs.address() + (number * PART) as u64,
    }
}

/// The values are those that flags have: small numbers.
fn input(rank: usize) -> Vec<u32> {
    (0..PART as u32).map(|i| i % 97 + rank as u32).collect()
}

fn expected(call: &Call, number: usize, rank: usize, ranks: usize) -> Vec<u8> {
    let random = scramble(number as u64, 77) as usize;
    let shared_out = matches!(
        call.operation,
        Operation::ReduceScatter | Operation::AllToAll
    );
    let begin = random / 8 % 8 + if shared_out { rank * call.count } else { 0 };
    let parts: Vec<Vec<u8>> = (0..ranks)
        .map(|peer| {
            let part = &input(peer)[begin..begin + call.count];
            part.iter().flat_map(|value| value.to_le_bytes()).collect()
        })
        .collect();
    let parts: Vec<&[u8]> = parts.iter().map(|part| &part[..]).collect();
    match call.operation {
        Operation::AllGather | Operation::AllToAll => parts.concat(),
        _ => oracle::reduced(call.dtype, call.op, &parts),
    }
}

#[test]
fn operations_in_flight_of_ranks_that_are_late() {
    for ranks in [2, 3, 4, 8] {
        let Some(place) = Place::new(ranks, Duration::from_secs(5)) else {
            return;
        };
        let outputs: Vec<_> = (0..ranks)
            .map(|_| DeviceBlock::new(&place.context, CALLS * PART).unwrap())
            .collect();
        for (rank, own) in place.ranks.iter().enumerate() {
            // SAFETY: the input is longer, and no kernel runs.
            unsafe {
                place
                    .copies
                    .write(own.input.address(), &input(rank))
                    .unwrap();
            };
        }
        std::thread::scope(|scope| {
            for (rank, own) in place.ranks.iter().enumerate() {
                let outputs = &outputs[rank];
                scope.spawn(move || {
                    for number in 0..CALLS {
                        let late = scramble(number as u64, rank as u64);
                        if late.is_multiple_of(10) {
                            std::thread::sleep(Duration::from_micros(late / 16 % 300));
                        }
                        let call = random_call(number, own, outputs, ranks);
                        // SAFETY: both buffers are long enough, and only this stream uses them.
                        unsafe { own.member.enqueue(&call, &own.stream).unwrap() };
                    }
                });
            }
        });
        place.wait().unwrap();
        for (rank, own) in place.ranks.iter().enumerate() {
            for number in 0..CALLS {
                let call = random_call(number, own, &outputs[rank], ranks);
                let expected = expected(&call, number, rank, ranks);
                let mut seen = vec![0_u8; expected.len()];
                // SAFETY: the output is that long, and no kernel runs.
                unsafe { place.copies.read(call.output, &mut seen).unwrap() };
                assert!(seen == expected, "rank {rank}, call {number}: {call:?}");
            }
        }
    }
}
