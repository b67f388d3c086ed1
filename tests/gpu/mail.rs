//! What is particular to messages of device memory that go through slots.

mod processes;

use std::sync::Barrier;

use spark_ccl::cuda::{DeviceMemory, DeviceSlice};
use spark_ccl::{Communicator, DType, Operation, RedOp};
use spark_ccl_testing::scramble;

use super::by_host::{memory, read, sums, values};
use super::{builder, gpus, stream_of};

/// Elements of messages that are short, and longer than all slots of a lane.
const SHORT: usize = 1000;
const LONG: usize = 1 << 20;

fn neighbours(comm: &Communicator) -> [usize; 2] {
    let (rank, size) = (comm.rank(), comm.size());
    [(rank + 1) % size, (rank + size - 1) % size]
}

/// Over links that are not RDMA, pieces of messages are as fast as they were.
#[test]
fn all_messages_take_slots_or_none_does() {
    let Some(gpus) = gpus(2) else { return };
    let is_over_rdma = std::env::var("SPARK_CCL_TEST_RDMA_SEED").is_ok();
    for (protocol, by_slots) in [("slots", true), ("proxy", is_over_rdma), ("pieces", false)] {
        gpus.each(&builder().set("SPARK_CCL_GPU_PROTOCOL", protocol), |comm| {
            for count in [0, 1, LONG] {
                let said = comm.explain_device(Operation::Send, DType::U64, count);
                let said = said.unwrap();
                assert_eq!(
                    said.starts_with("staged through slots, "),
                    by_slots,
                    "{said}"
                );
            }
            comm.finalize().unwrap();
        });
    }
}

/// Each rank sends, and then calls; or calls, and receives what was sent before.
#[test]
fn short_messages_complete_without_their_receiver_and_beside_calls() {
    let Some(gpus) = gpus(2) else { return };
    let everyone = Barrier::new(gpus.count);
    gpus.each(&builder(), |comm| {
        let (rank, stream, [next, previous]) = (comm.rank(), stream_of(&comm), neighbours(&comm));
        let own = memory(&comm, &values(rank, SHORT));
        let mut other = memory(&comm, &vec![7; SHORT]);
        let mut sum = memory(&comm, &vec![7; LONG]);
        let of_all = memory(&comm, &values(rank, LONG));
        for _ in 0..3 {
            comm.send(&own, next).on(&stream).unwrap();
            comm.wait(&stream).unwrap();
            everyone.wait();
            comm.all_reduce(&of_all, &mut sum, RedOp::Sum)
                .on(&stream)
                .unwrap();
            comm.recv(&mut other, previous).on(&stream).unwrap();
            comm.wait(&stream).unwrap();
            assert!(read(&other) == values(previous, SHORT));
            assert!(read(&sum) == sums(comm.size(), LONG, 1));
        }
        comm.finalize().unwrap();
    });
}

/// Calls, and messages between random ranks, all in one stream. Ranks that a message does not
/// concern are ahead.
#[test]
fn calls_and_messages_follow_each_other() {
    const TURNS: u64 = 300;
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&builder(), |comm| {
        let (rank, size, stream) = (comm.rank(), comm.size(), stream_of(&comm));
        let raw = |memory: &DeviceMemory<u64>, len| -> DeviceSlice<u64> {
            // SAFETY: `kept` has the memory until the stream has been waited for, and all calls are
            // in that stream.
            unsafe { DeviceSlice::from_raw(memory.address(), len, comm.device().unwrap()) }
        };
        let mut kept = Vec::new();
        for turn in 0..TURNS {
            let random = |what, limit: usize| scramble(turn, what) as usize % limit;
            let len = [random(1, 3), random(1, 2000), random(1, 100_000)][random(2, 3)];
            let from = random(3, size);
            let to = (from + 1 + random(4, size - 1)) % size;
            let input = memory(&comm, &values(rank, len));
            let output = memory(&comm, &vec![7; len]);
            let (own, all) = (raw(&input, len), raw(&output, len));
            let expected = match random(5, 3) {
                0 => {
                    comm.all_reduce(own, all, RedOp::Sum).on(&stream).unwrap();
                    Some(sums(size, len, 1))
                }
                1 => {
                    comm.broadcast(own, all, from).on(&stream).unwrap();
                    Some(values(from, len))
                }
                _ => {
                    if rank == from {
                        comm.send(own, to).on(&stream).unwrap();
                    }
                    (rank == to).then(|| {
                        comm.recv(all, from).on(&stream).unwrap();
                        values(from, len)
                    })
                }
            };
            kept.push((input, output, expected));
        }
        comm.wait(&stream).unwrap();
        for (turn, (_, output, expected)) in kept.iter().enumerate() {
            let expected = expected.clone().unwrap_or_else(|| vec![7; output.len()]);
            assert!(read(output) == expected, "turn {turn}, rank {rank}");
        }
        comm.finalize().unwrap();
    });
}
