//! Memory from `alloc_device` that is the host's, so that calls by way of the host are not staged.
//! With `SPARK_CCL_GPU_PINNED=1`, all other tests of staged memory are, too.

use std::sync::Barrier;
use std::time::Duration;

use spark_ccl::cuda::DeviceSlice;
use spark_ccl::cuda::cudarc::driver::DevicePtr;
use spark_ccl::cuda::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use spark_ccl::{Builder, Communicator, DType, Error, Operation, RedOp};
use spark_ccl_testing::scramble;

use super::by_host::{memory, read, sums, values};
use super::{builder, gpus, stream_of, text};

/// Longer than a slot is.
const LEN: usize = 300_001;

fn pinned() -> Builder {
    builder().set("SPARK_CCL_GPU_PINNED", "1")
}

/// The values that a rank has for another one.
fn block(from: usize, to: usize, len: usize) -> Vec<u64> {
    (0..len as u64)
        .map(|place| scramble((from << 16 | to) as u64, place))
        .collect()
}

#[test]
fn all_collectives_find_the_buffers() {
    let Some(gpus) = gpus(2) else { return };
    for path in ["auto", "zero-copy"] {
        gpus.each(&pinned().set("SPARK_CCL_PATH", path), |comm| {
            let said = comm.device_path().unwrap();
            assert!(
                said.contains("is the host's, and collectives on it are not staged"),
                "{said}"
            );
            for len in [0, 1, 1000, LEN] {
                apart(&comm, len);
                in_place(&comm, len);
            }
            comm.finalize().unwrap();
        });
    }
}

/// The driver waits for a GPU's kernels before it frees pinned memory there, so no rank frees
/// another one's in a call.
#[test]
fn memory_of_another_rank_is_not_freed_by_an_allocation() {
    let Some(gpus) = gpus(2) else { return };
    let builder = pinned().operation_timeout(Duration::from_secs(20));
    let meet = Barrier::new(gpus.count);
    gpus.each(&builder, |comm| {
        let stream = stream_of(&comm);
        for round in 0..20 {
            let mut kept = memory(&comm, &[round; 100]);
            let mut dropped = memory(&comm, &[round; 100]);
            comm.all_reduce_in_place(&mut dropped, RedOp::Sum)
                .on(&stream)
                .unwrap();
            comm.wait(&stream).unwrap();
            drop(dropped);
            meet.wait();
            let is_late = comm.rank() == 0;
            if is_late {
                meet.wait();
                drop(memory(&comm, &[1]));
            }
            // The others' kernels wait for the late rank's.
            comm.all_reduce_in_place(&mut kept, RedOp::Sum)
                .on(&stream)
                .unwrap();
            if !is_late {
                meet.wait();
            }
            comm.wait(&stream).unwrap();
            assert_eq!(read(&kept), [round * comm.size() as u64; 100]);
        }
        comm.finalize().unwrap();
    });
}

/// With an input and an output, of which one is a part of longer memory.
fn apart(comm: &Communicator, len: usize) {
    let (stream, ranks, rank) = (stream_of(comm), comm.size(), comm.rank());
    let all = |from: usize| (0..ranks).flat_map(move |to| block(from, to, len));
    let own = memory(comm, &all(rank).collect::<Vec<_>>());
    let mut seen = memory(comm, &vec![7; ranks * len + 3]);
    let check = |seen: &_, expected: Vec<u64>, what: &str| {
        comm.wait(&stream).unwrap();
        let seen = read(seen);
        let end = 3 + expected.len();
        assert!(seen[3..end] == expected, "{what} of {len}");
        assert!(seen[..3] == [7; 3], "{what} of {len}");
    };
    let (first, last) = (0, ranks - 1);

    let whole = seen.view_mut(3..3 + ranks * len).unwrap();
    comm.all_to_all(&own, whole).on(&stream).unwrap();
    let expected = (0..ranks).flat_map(|from| block(from, rank, len));
    check(&seen, expected.collect(), "all_to_all");

    let whole = seen.view_mut(3..3 + ranks * len).unwrap();
    let part = own.view(0..len).unwrap();
    comm.all_gather(part, whole).on(&stream).unwrap();
    let expected = (0..ranks).flat_map(|from| block(from, 0, len));
    check(&seen, expected.collect(), "all_gather");

    let part = seen.view_mut(3..3 + len).unwrap();
    comm.reduce_scatter(&own, part, RedOp::Sum)
        .on(&stream)
        .unwrap();
    let sum = |to: usize| {
        let blocks: Vec<_> = (0..ranks).map(|from| block(from, to, len)).collect();
        (0..len)
            .map(|place| {
                blocks
                    .iter()
                    .fold(0_u64, |sum, block| sum.wrapping_add(block[place]))
            })
            .collect::<Vec<_>>()
    };
    check(&seen, sum(rank), "reduce_scatter");

    let part = seen.view_mut(3..3 + len).unwrap();
    comm.scatter(&own, part, last).on(&stream).unwrap();
    check(&seen, block(last, rank, len), "scatter");

    let (part, whole) = (
        own.view(0..len).unwrap(),
        seen.view_mut(3..3 + ranks * len).unwrap(),
    );
    comm.gather(part, whole, first).on(&stream).unwrap();
    if rank == first {
        let expected = (0..ranks).flat_map(|from| block(from, 0, len));
        check(&seen, expected.collect(), "gather");
    }

    let (part, out) = (
        own.view(0..len).unwrap(),
        seen.view_mut(3..3 + len).unwrap(),
    );
    comm.reduce(part, out, RedOp::Sum, last)
        .on(&stream)
        .unwrap();
    if rank == last {
        check(&seen, sum(0), "reduce");
    }
    comm.wait(&stream).unwrap();
}

fn in_place(comm: &Communicator, len: usize) {
    let (stream, ranks, rank) = (stream_of(comm), comm.size(), comm.rank());
    let all = (0..ranks).flat_map(|to| block(rank, to, len));
    let all: Vec<_> = all.collect();

    let mut seen = memory(comm, &all);
    comm.all_gather_in_place(&mut seen).on(&stream).unwrap();
    comm.wait(&stream).unwrap();
    let expected: Vec<_> = (0..ranks).flat_map(|from| block(from, from, len)).collect();
    assert!(read(&seen) == expected, "all_gather of {len}");

    seen.write(&all).unwrap();
    comm.all_to_all_in_place(&mut seen).on(&stream).unwrap();
    comm.wait(&stream).unwrap();
    let expected: Vec<_> = (0..ranks).flat_map(|from| block(from, rank, len)).collect();
    assert!(read(&seen) == expected, "all_to_all of {len}");

    seen.write(&all).unwrap();
    comm.reduce_scatter_in_place(&mut seen, RedOp::Max)
        .on(&stream)
        .unwrap();
    comm.wait(&stream).unwrap();
    let blocks: Vec<_> = (0..ranks).map(|from| block(from, rank, len)).collect();
    let most = |place: usize| blocks.iter().map(|block| block[place]).max().unwrap();
    let expected: Vec<_> = (0..len).map(most).collect();
    assert!(
        read(&seen)[rank * len..][..len] == expected,
        "reduce_scatter of {len}"
    );

    let mut seen = memory(comm, &values(rank, len));
    comm.all_reduce_in_place(&mut seen, RedOp::Sum)
        .on(&stream)
        .unwrap();
    comm.wait(&stream).unwrap();
    assert!(read(&seen) == sums(ranks, len, 1), "all_reduce of {len}");
    comm.broadcast_in_place(&mut seen, ranks - 1)
        .on(&stream)
        .unwrap();
    comm.wait(&stream).unwrap();
}

/// The kernel reads the buffers' addresses, and not what they were when a slot of another call had
/// the same bell.
#[test]
fn staged_calls_and_others_take_turns_in_graphs() {
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&pinned(), |comm| {
        let stream = stream_of(&comm);
        let own = values(comm.rank(), LEN);
        let (pinned, device) = (memory(&comm, &own), stream.clone_htod(&own).unwrap());
        let (mut sum, mut other) = (memory(&comm, &own), stream.alloc_zeros::<u64>(LEN).unwrap());
        let number = comm.device().unwrap();
        let slice = |address| {
            // SAFETY: `pinned`, `device`, `sum` and `other` outlive the graph, which is waited for,
            // and nothing else uses them meanwhile.
            unsafe { DeviceSlice::<u64>::from_raw(address, LEN, number) }
        };
        let from = device.device_ptr(&stream).0;
        let to = other.device_ptr(&stream).0;
        stream
            .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            .unwrap();
        for _ in 0..3 {
            comm.all_reduce(slice(pinned.address()), slice(sum.address()), RedOp::Sum)
                .on(&stream)
                .unwrap();
            comm.all_reduce(slice(from), slice(to), RedOp::Max)
                .on(&stream)
                .unwrap();
        }
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = stream.end_capture(flags).unwrap().unwrap();
        for _ in 0..5 {
            sum.write(&vec![1; LEN]).unwrap();
            stream.memset_zeros(&mut other).unwrap();
            graph.launch().unwrap();
            comm.wait(&stream).unwrap();
            assert!(read(&sum) == sums(comm.size(), LEN, 1));
            let ranks: Vec<_> = (0..comm.size()).map(|rank| values(rank, LEN)).collect();
            let most = |place: usize| ranks.iter().map(|values| values[place]).max().unwrap();
            let expected: Vec<_> = (0..LEN).map(most).collect();
            assert!(stream.clone_dtoh(&other).unwrap() == expected);
        }
        drop(graph);
        comm.finalize().unwrap();
    });
}

#[test]
fn memory_of_two_kinds_is_named() {
    let Some(gpus) = gpus(2) else { return };
    for (protocol, len, way) in [
        ("slots", LEN, "through slots"),
        ("slots", 1, "through slots"),
        ("proxy", LEN, "a part of all_reduce"),
    ] {
        let builder = pinned().set("SPARK_CCL_GPU_PROTOCOL", protocol);
        gpus.each(&builder, |comm| {
            let stream = stream_of(&comm);
            let error = if comm.rank() == 0 {
                let mut memory = memory(&comm, &values(0, len));
                let call = comm.all_reduce_in_place(&mut memory, RedOp::Sum);
                call.on(&stream).and_then(|()| comm.wait(&stream))
            } else {
                let mut memory = stream.alloc_zeros::<u64>(len).unwrap();
                let call = comm.all_reduce_in_place(&mut memory, RedOp::Sum);
                call.on(&stream).and_then(|()| comm.wait(&stream))
            };
            let said = text(error);
            for part in [way, "with memory from alloc_device"] {
                assert!(said.contains(part), "{protocol}: {said}");
            }
        });
    }
}

#[test]
fn zero_copy_refuses_what_would_be_staged() {
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&pinned().set("SPARK_CCL_PATH", "zero-copy"), |comm| {
        let stream = stream_of(&comm);
        let mut elsewhere = stream.alloc_zeros::<u64>(10).unwrap();
        let said = text(
            comm.all_reduce_in_place(&mut elsewhere, RedOp::Sum)
                .on(&stream),
        );
        for part in ["is not from alloc_device", "SPARK_CCL_PATH=auto"] {
            assert!(said.contains(part), "{said}");
        }
        let call = comm.all_reduce_in_place(&mut elsewhere, RedOp::Sum);
        call.by_any_path().on(&stream).unwrap();
        comm.wait(&stream).unwrap();
        comm.finalize().unwrap();
    });
}

/// Once a call has failed, the thread that does it uses its memory no more: here, it is that of
/// calls of another communicator at once.
#[test]
fn memory_of_a_call_that_has_failed_can_be_used_again() {
    let Some(gpus) = gpus(2) else { return };
    for turn in 0..10 {
        let builder = pinned().operation_timeout(Duration::from_millis(700));
        gpus.each(&builder, |comm| {
            let other = comm.split(Some(0), 0).unwrap().unwrap();
            other.set_timeout(Duration::from_secs(60)).unwrap();
            let (stream, other_stream) = (stream_of(&comm), stream_of(&other));
            let mut memory = memory(&comm, &values(comm.rank(), LEN));
            let is_last = comm.rank() + 1 == comm.size();
            if is_last {
                std::thread::sleep(Duration::from_millis(680 + 10 * turn));
            }
            let call = comm
                .all_reduce_in_place(&mut memory, RedOp::Sum)
                .on(&stream);
            let result = call.and_then(|()| comm.wait(&stream));
            if result.is_err() {
                memory.write(&values(comm.rank(), LEN)).unwrap();
            }
            // Which ranks have the result of a call that was close to its limit is not said: all
            // take part again.
            memory.write(&values(comm.rank(), LEN)).unwrap();
            other
                .all_reduce_in_place(&mut memory, RedOp::Sum)
                .on(&other_stream)
                .unwrap();
            other.wait(&other_stream).unwrap();
            assert!(read(&memory) == sums(comm.size(), LEN, 1), "turn {turn}");
            other.barrier().run().unwrap();
        });
    }
}

#[test]
fn dropped_memory_is_freed_behind_its_calls() {
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&pinned(), |comm| {
        let stream = stream_of(&comm);
        let mut sum = memory(&comm, &vec![0; LEN]);
        for turn in 0..200 {
            let own = memory(&comm, &vec![turn; LEN]);
            comm.all_reduce(&own, &mut sum, RedOp::Sum)
                .on(&stream)
                .unwrap();
            drop(own);
        }
        comm.wait(&stream).unwrap();
        assert!(read(&sum) == vec![199 * comm.size() as u64; LEN]);
        comm.finalize().unwrap();
    });
}

#[test]
fn how_it_is_done_is_explained() {
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&pinned(), |comm| {
        for (count, other) in [
            (1 << 20, "staged through slots, "),
            (4000, "staged, "),
            (200, "staged by packets "),
        ] {
            let said = comm
                .explain_device(Operation::AllGather, DType::F32, count)
                .unwrap();
            assert!(
                said.starts_with("on the host, on memory from alloc_device itself, by "),
                "{said}"
            );
            assert!(said.contains(&format!("other memory: {other}")), "{said}");
        }
        comm.finalize().unwrap();
    });
}

#[test]
fn memory_that_is_not_there_is_said() {
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&pinned(), |comm| {
        let error = comm.alloc_device::<u64>(1 << 50).unwrap_err();
        assert!(matches!(error, Error::Memory { .. }), "{error:?}");
        assert!(
            error.to_string().contains("bytes of pinned memory"),
            "{error}"
        );
        comm.finalize().unwrap();
    });
}
