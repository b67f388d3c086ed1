//! What is particular to device memory that goes by way of the host: pieces, other links, and
//! faults in the middle.

use std::time::Duration;

use spark_ccl::cuda::{DeviceMemory, DeviceSlice};
use spark_ccl::{Carrier, Communicator, DType, Element, Error, Operation, RedOp};
use spark_ccl_testing::scramble;

use super::late::assert_names_the_late;
use super::support::lack_of_gpus_is_said;
use super::{builder, gpus, of_fakes, stream_of, text};

/// By then, a call would have failed that needs more of a rank that has left.
const AFTER_FAREWELLS: Duration = Duration::from_secs(3);

pub(super) fn values(rank: usize, len: usize) -> Vec<u64> {
    (0..len as u64)
        .map(|place| scramble(rank as u64, place))
        .collect()
}

pub(super) fn memory<T: Element>(comm: &Communicator, values: &[T]) -> DeviceMemory<T> {
    let mut memory = comm.alloc_device(values.len()).unwrap();
    memory.write(values).unwrap();
    memory
}

pub(super) fn read<T: Element>(memory: &DeviceMemory<T>) -> Vec<T> {
    let mut seen = vec![T::default(); memory.len()];
    memory.read(&mut seen).unwrap();
    seen
}

/// What all ranks' values are in sum, times a number.
pub(super) fn sums(ranks: usize, len: usize, times: u64) -> Vec<u64> {
    let all: Vec<_> = (0..ranks).map(|rank| values(rank, len)).collect();
    let sum = |place: usize| {
        all.iter()
            .fold(0_u64, |sum, values| sum.wrapping_add(values[place]))
    };
    (0..len)
        .map(|place| sum(place).wrapping_mul(times))
        .collect()
}

/// From nothing over one piece to many more than there are slots, with ends at odd places.
#[test]
fn all_lengths_are_summed_over_each_link() {
    let Some(gpus) = gpus(2) else { return };
    let protocols = ["slots", "proxy"].map(|name| ("SPARK_CCL_GPU_PROTOCOL", name));
    for ((name, value), (protocol, set)) in [("SPARK_CCL_SHM", "1"), ("SPARK_CCL_SHM", "0")]
        .into_iter()
        .flat_map(|shm| protocols.map(|protocol| (shm, protocol)))
    {
        gpus.each(&builder().set(name, value).set(protocol, set), |comm| {
            let stream = stream_of(&comm);
            for len in [0, 1, 2, 128, 129, 16_383, 65_537, 1_000_003, (4 << 20) + 7] {
                let input = memory(&comm, &values(comm.rank(), len));
                let mut output = memory(&comm, &vec![7; len]);
                comm.all_reduce(&input, &mut output, RedOp::Sum)
                    .on(&stream)
                    .unwrap();
                comm.all_reduce_in_place(&mut output, RedOp::Max)
                    .on(&stream)
                    .unwrap();
                comm.wait(&stream).unwrap();
                assert!(
                    read(&output) == sums(comm.size(), len, 1),
                    "{len} over {name}={value}, {protocol}={set}"
                );
            }
            comm.finalize().unwrap();
        });
    }
}

/// Blocks of several pieces, at addresses of any remainder.
#[test]
fn blocks_of_any_place_are_exchanged() {
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&builder(), |comm| {
        let (stream, ranks, rank) = (stream_of(&comm), comm.size(), comm.rank());
        for (len, shift) in [
            (1_usize, 0),
            (1000, 1),
            (300_001, 2),
            (300_000, 4),
            (2_000_003, 3),
        ] {
            let value = |from: usize, to: usize, place: usize| {
                scramble((from * ranks + to) as u64, place as u64) as u8
            };
            let sent: Vec<u8> = (0..ranks)
                .flat_map(|to| (0..len).map(move |place| value(rank, to, place)))
                .collect();
            let mut input = comm.alloc_device::<u8>(shift + sent.len()).unwrap();
            input.write(&[vec![0; shift], sent].concat()).unwrap();
            let mut output = comm.alloc_device::<u8>(ranks * len + shift).unwrap();
            output.write(&vec![9; ranks * len + shift]).unwrap();
            let device = comm.device().unwrap();
            let part = |memory: &DeviceMemory<u8>| {
                // SAFETY: `input` and `output` outlive the call, which is waited for, and nothing
                // else uses them meanwhile.
                unsafe {
                    DeviceSlice::<u8>::from_raw(
                        memory.address() + shift as u64,
                        ranks * len,
                        device,
                    )
                }
            };
            comm.all_to_all(part(&input), part(&output))
                .on(&stream)
                .unwrap();
            comm.wait(&stream).unwrap();
            let mut seen = vec![0; ranks * len + shift];
            output.read(&mut seen).unwrap();
            assert!(seen[..shift].iter().all(|&byte| byte == 9));
            let expected =
                (0..ranks).flat_map(|from| (0..len).map(move |place| value(from, rank, place)));
            assert!(
                seen[shift..].iter().copied().eq(expected),
                "{len} from {shift}"
            );
        }
        comm.finalize().unwrap();
    });
}

#[test]
fn two_communicators_may_be_used_in_opposite_orders() {
    const LEN: usize = 300_007;
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&builder(), |comm| {
        let other = comm.split(Some(0), 0).unwrap().unwrap();
        let own = values(comm.rank(), LEN);
        let mut lanes = [&comm, &other].map(|comm| (comm, stream_of(comm), memory(comm, &own)));
        if comm.rank() % 2 == 1 {
            lanes.reverse();
        }
        for round in 0..10 {
            for (comm, stream, memory) in &mut lanes {
                comm.all_reduce_in_place(memory, RedOp::Sum)
                    .on(stream)
                    .unwrap();
            }
            for (comm, stream, memory) in &lanes {
                comm.wait(stream).unwrap();
                let times = (comm.size() as u64).wrapping_pow(round);
                assert!(
                    read(memory) == sums(comm.size(), LEN, times),
                    "round {round}"
                );
            }
        }
        other.finalize().unwrap();
        comm.finalize().unwrap();
    });
}

#[test]
fn host_memory_has_calls_of_its_own_meanwhile() {
    const LEN: usize = 100_003;
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&builder(), |comm| {
        let stream = stream_of(&comm);
        let mut memory = memory(&comm, &values(comm.rank(), LEN));
        for round in 0..20_u64 {
            comm.all_reduce_in_place(&mut memory, RedOp::Sum)
                .on(&stream)
                .unwrap();
            let mut sum = [round];
            comm.all_reduce_in_place(&mut sum, RedOp::Sum)
                .run()
                .unwrap();
            assert_eq!(sum, [round * comm.size() as u64]);
        }
        comm.wait(&stream).unwrap();
        let times = (comm.size() as u64).wrapping_pow(19);
        assert!(read(&memory) == sums(comm.size(), LEN, times));
        comm.finalize().unwrap();
    });
}

#[test]
fn a_call_that_differs_is_named_and_a_new_communicator_works() {
    let Some(gpus) = gpus(2) else { return };
    for lens in [[1000, 1001], [2_000_000, 2_000_007]] {
        gpus.each(&builder(), |comm| {
            let (stream, len) = (stream_of(&comm), lens[comm.rank().min(1)]);
            let mut memory = memory(&comm, &values(comm.rank(), len));
            let mut other = self::memory(&comm, &[comm.rank() as u64]);
            comm.all_reduce_in_place(&mut other, RedOp::Sum)
                .on(&stream)
                .unwrap();
            comm.all_reduce_in_place(&mut memory, RedOp::Sum)
                .on(&stream)
                .unwrap();
            let error = comm.wait(&stream).unwrap_err();
            let said = error.to_string();
            let counts = lens.map(|len| format!("count {len}"));
            for part in ["rank 0", "#2 on the device", &counts[0], &counts[1]] {
                assert!(said.contains(part), "{part}: {said}");
            }
            let again = comm.all_reduce_in_place(&mut memory, RedOp::Sum);
            assert!(matches!(again.on(&stream), Err(Error::Failed(_))));
        });
    }
    gpus.each(&builder(), |comm| {
        let own = memory(&comm, &values(comm.rank(), 10));
        let mut sum = memory(&comm, &[0; 10]);
        comm.all_reduce(&own, &mut sum, RedOp::Sum).run().unwrap();
        assert!(read(&sum) == sums(comm.size(), 10, 1));
    });
}

/// What a fault has cut short is left as it was, from the first piece on that not all ranks have
/// had.
#[test]
fn a_rank_that_is_late_is_named_and_nothing_is_written() {
    const LEN: usize = 3_000_000;
    let Some(gpus) = gpus(2) else { return };
    let builder = builder().operation_timeout(Duration::from_secs(2));
    gpus.each(&builder, |comm| {
        let stream = stream_of(&comm);
        let input = memory(&comm, &values(comm.rank(), LEN));
        let mut output = memory(&comm, &vec![7; LEN]);
        if comm.rank() > 0 {
            comm.all_reduce(&input, &mut output, RedOp::Sum)
                .on(&stream)
                .unwrap();
        }
        assert_names_the_late(&comm, &stream, 0);
        stream.synchronize().unwrap();
        assert!(read(&output) == vec![7; LEN]);
    });
}

/// A rank that made one of two calls would be a call behind the others for good.
#[test]
fn a_group_that_is_enqueued_in_part_fails_the_communicator() {
    let Some(gpus) = gpus(2) else { return };
    let Some(refuse_launch) = of_fakes(c"fake_refuse_launch") else {
        return;
    };
    gpus.each(&builder(), |comm| {
        let stream = stream_of(&comm);
        let mut sums = [(); 2].map(|()| memory(&comm, &values(comm.rank(), 1000)));
        if comm.rank() == 0 {
            refuse_launch(1);
        }
        let grouped = comm.group(|group| {
            for sum in &mut sums {
                comm.all_reduce_in_place(sum, RedOp::Sum)
                    .within(group, &stream);
            }
            Ok(())
        });
        if comm.rank() == 0 {
            let said = grouped.unwrap_err().to_string();
            assert!(said.contains("906"), "{said}");
        }
        let said = comm.wait(&stream).unwrap_err().to_string();
        assert!(said.contains("a group was enqueued in part"), "{said}");
    });
}

/// Its kernel has ended, and slots of it are still on their way.
#[test]
fn a_rank_that_has_left_still_sends_what_it_has_done() {
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&builder().set("SPARK_CCL_SHM", "0"), |comm| {
        let stream = stream_of(&comm);
        for len in [300_001, 1].repeat(10) {
            let other = comm.split(Some(0), 0).unwrap().unwrap();
            let mut sum = memory(&other, &values(comm.rank(), len));
            other
                .all_reduce_in_place(&mut sum, RedOp::Sum)
                .on(&stream)
                .unwrap();
            other.wait(&stream).unwrap();
            drop(other);
            assert!(read(&sum) == sums(comm.size(), len, 1));
        }
        comm.finalize().unwrap();
    });
}

/// A call may stand behind something long in its stream: here, behind a call of another
/// communicator.
#[test]
fn a_call_of_which_a_rank_that_has_left_has_done_its_part_goes_on() {
    const LEN: usize = 1000;
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&builder(), |comm| {
        let other = comm.split(Some(0), 0).unwrap().unwrap();
        let stream = stream_of(&comm);
        let mut sum = memory(&comm, &values(comm.rank(), LEN));
        let mut sent = memory(&comm, &values(comm.rank(), LEN));
        let is_root = comm.rank() == 0;
        if !is_root {
            other
                .all_reduce_in_place(&mut sum, RedOp::Sum)
                .on(&stream)
                .unwrap();
        }
        comm.broadcast_in_place(&mut sent, 0).on(&stream).unwrap();
        if is_root {
            drop(comm);
            std::thread::sleep(AFTER_FAREWELLS);
            other
                .all_reduce_in_place(&mut sum, RedOp::Sum)
                .on(&stream)
                .unwrap();
            other.wait(&stream).unwrap();
        } else {
            comm.wait(&stream).unwrap();
        }
        assert!(read(&sent) == values(0, LEN));
        other.finalize().unwrap();
    });
}

#[test]
fn the_way_and_the_pieces_are_explained() {
    let Some(gpus) = gpus(2) else { return };
    let builder = builder()
        .set("SPARK_CCL_GPU_PINNED", "0")
        .set("SPARK_CCL_GPU_PROTOCOL", "slots");
    gpus.each(&builder, |comm| {
        let path = comm.device_path().unwrap();
        for part in [
            "staged through the host",
            "not the GPUs' memory: SPARK_CCL_GPU_PROTOCOL=slots",
        ] {
            assert!(path.contains(part), "{part}: {path}");
        }
        let explain = |operation, count| comm.explain_device(operation, DType::F32, count);
        let sum = explain(Operation::AllReduce, 16 << 10).unwrap();
        assert!(sum.starts_with("staged through slots, pieces of "), "{sum}");
        let short = explain(Operation::AllReduce, 256).unwrap();
        assert_eq!(short, "staged by packets on 1 CTA, straight to all ranks");
        let cast = explain(Operation::Broadcast, 16 << 10).unwrap();
        assert!(
            cast.starts_with("staged through slots, pieces of "),
            "{cast}"
        );
        for (operation, count) in [(Operation::AllReduce, 4000), (Operation::Broadcast, 1000)] {
            let small = explain(operation, count).unwrap();
            let bytes = 4 * count;
            let expected =
                format!("staged, 1 piece of up to {bytes} bytes on 1 CTA, each on the host by ");
            assert!(small.starts_with(&expected), "{small}");
            let algorithm = comm.explain(operation, DType::F32, count, false);
            let algorithm = algorithm.unwrap().algorithm.to_string();
            assert!(small.contains(&algorithm), "{algorithm}: {small}");
        }
        let message = explain(Operation::Send, 1 << 20).unwrap();
        let expected = "staged through slots, 64 pieces of up to 65536 bytes, one CTA for each \
                        peer and direction";
        assert_eq!(message, expected);
        assert_eq!(explain(Operation::Barrier, 0), None);
        comm.finalize().unwrap();
    });
}

#[test]
fn only_what_is_faster_so_goes_through_slots() {
    let Some(gpus) = gpus(2) else { return };
    let builder = builder().set("SPARK_CCL_GPU_PROTOCOL", "proxy");
    for shm in ["1", "0"] {
        gpus.each(&builder.clone().set("SPARK_CCL_SHM", shm), |comm| {
            let stream = stream_of(&comm);
            let (rank, ranks, len) = (comm.rank(), comm.size(), 20_000);
            let carrier = comm.links()[1 - rank].carrier;
            let path = comm.device_path().unwrap();
            let are_written = path.contains("RDMA devices write slots ");
            assert_eq!(are_written, carrier == Carrier::Rdma, "{path}");
            for operation in [
                Operation::AllReduce,
                Operation::AllGather,
                Operation::AllToAll,
                Operation::ReduceScatter,
                Operation::Broadcast,
                Operation::Reduce,
                Operation::Gather,
                Operation::Scatter,
            ] {
                let said = comm.explain_device(operation, DType::U64, len).unwrap();
                let is_through = said.contains("staged through slots, ");
                // Over RDMA, GPUs reduce all, out of slots that devices write. Calls with a root
                // would have to be longer.
                let is_faster = operation != Operation::AllReduce && !operation.is_rooted();
                let is_faster = is_faster || carrier == Carrier::Rdma;
                assert_eq!(is_through, is_faster, "{said}");
                // Over links, each slot is a message.
                let is_long = said.contains("pieces of up to 65536 bytes");
                assert_eq!(is_long, is_through && carrier == Carrier::Tcp, "{said}");
            }
            let own = memory(&comm, &values(rank, len));
            let (mut sum, mut all) = (
                memory(&comm, &vec![0; len]),
                memory(&comm, &vec![0; ranks * len]),
            );
            comm.all_reduce(&own, &mut sum, RedOp::Sum)
                .on(&stream)
                .unwrap();
            comm.all_gather(&own, &mut all).on(&stream).unwrap();
            comm.wait(&stream).unwrap();
            assert!(read(&sum) == sums(ranks, len, 1));
            let gathered: Vec<_> = (0..ranks).flat_map(|from| values(from, len)).collect();
            assert!(read(&all) == gathered);
            comm.finalize().unwrap();
        });
    }
}

#[test]
fn what_needs_the_peers_memory_is_refused_where_it_is_out_of_reach() {
    let Some(gpus) = gpus(2) else { return };
    let builder = builder().set("SPARK_CCL_GPU_PINNED", "0");
    let said = text(builder.set("SPARK_CCL_PATH", "zero-copy").local(9));
    for part in ["9 ranks are more than 8", "SPARK_CCL_GPU_PINNED=1"] {
        assert!(said.contains(part), "{said}");
    }
    drop(gpus);
}

#[test]
fn what_is_missing_is_said() {
    lack_of_gpus_is_said(&builder());
}
