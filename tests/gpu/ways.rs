//! Calls that go different ways at different ranks, and ranks that leave.

use std::sync::Barrier;
use std::time::Duration;

use spark_ccl::RedOp;
use spark_ccl::cuda::DeviceSlice;
use spark_ccl::cuda::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};

use super::by_host::{memory, read, sums, values};
use super::{builder, gpus, stream_of, text};

/// One kernel waits for slots or packets, the other one for the host.
#[test]
fn calls_that_go_two_ways_are_named() {
    let Some(gpus) = gpus(2) else { return };
    for len in [1, 100, 30_000] {
        gpus.each(&builder(), |comm| {
            let stream = stream_of(&comm);
            let mut memory = memory(&comm, &values(comm.rank(), len));
            // Equally many of each kind before.
            for _ in 0..3 {
                comm.all_reduce_in_place(&mut memory, RedOp::Sum)
                    .on(&stream)
                    .unwrap();
                comm.broadcast_in_place(&mut memory, 0).on(&stream).unwrap();
            }
            let call = if comm.rank() == 0 {
                comm.all_reduce_in_place(&mut memory, RedOp::Sum)
                    .on(&stream)
            } else {
                comm.broadcast_in_place(&mut memory, 0).on(&stream)
            };
            let said = text(call.and_then(|()| comm.wait(&stream)));
            for part in ["operation #7 on the device", "all_reduce(", "broadcast("] {
                assert!(said.contains(part), "{said}");
            }
        });
    }
}

/// The length decides which way a call goes.
#[test]
fn lengths_that_go_two_ways_are_named() {
    let Some(gpus) = gpus(2) else { return };
    for differing in [
        [100, 30_000],
        [100, 2000],
        [2000, 30_000],
        [30_000, 1],
        [0, 100],
        [0, 30_000],
    ] {
        gpus.each(&builder(), |comm| {
            let stream = stream_of(&comm);
            let all_reduce = |lens: &[usize]| {
                let mut memories = lens
                    .iter()
                    .map(|&len| memory(&comm, &values(comm.rank(), len)));
                let mut memories: Vec<_> = memories.by_ref().collect();
                let mut calls = memories
                    .iter_mut()
                    .map(|memory| comm.all_reduce_in_place(memory, RedOp::Sum).on(&stream));
                let called: Result<(), _> = calls.by_ref().collect();
                drop(calls);
                let result = called.and_then(|()| comm.wait(&stream));
                result.map(|()| read(&memories[0]))
            };
            for len in differing {
                assert!(all_reduce(&[len]).unwrap() == sums(comm.size(), len, 1));
            }
            // Behind it is one that ranks have alike, and must not take for another.
            let own = differing[usize::from(comm.rank() > 0)];
            let said = text(all_reduce(&[own, differing[1]]));
            let lens = differing.map(|len| format!("count {len}"));
            for part in ["operation #3 on the device", &lens[0], &lens[1]] {
                assert!(said.contains(part), "{said}");
            }
        });
    }
}

/// A root of a short one ends its call alone. The others must not take its next call for theirs.
#[test]
fn a_root_that_has_ended_its_call_is_not_taken_for_one_of_the_next() {
    const LEN: usize = 100;
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&builder(), |comm| {
        let stream = stream_of(&comm);
        let mut sums = [(); 3].map(|()| memory(&comm, &values(comm.rank(), LEN)));
        let [met, first, second] = &mut sums;
        let all_reduce = |sum| comm.all_reduce_in_place(sum, RedOp::Sum).on(&stream);
        all_reduce(met).unwrap();
        comm.wait(&stream).unwrap();
        let called = if comm.rank() == 0 {
            comm.broadcast_in_place(first, 0).on(&stream)
        } else {
            all_reduce(first)
        };
        let called = called.and_then(|()| all_reduce(second));
        let said = text(called.and_then(|()| comm.wait(&stream)));
        for part in ["on the device", "all_reduce("] {
            assert!(said.contains(part), "{said}");
        }
    });
}

/// Numbers are those of calls, whatever pieces they had. Packets of a peer's next call do not hold
/// a rank up: since graphs may be launched at any time, it looks at all that comes.
#[test]
fn the_last_call_of_a_rank_that_has_left_is_named() {
    let Some(gpus) = gpus(2) else { return };
    for len in [1, 1_000_003] {
        let has_called = Barrier::new(gpus.count);
        gpus.each(&builder(), |comm| {
            let stream = stream_of(&comm);
            let memory = memory(&comm, &values(comm.rank(), len));
            let device = comm.device().unwrap();
            // SAFETY: `memory` outlives the graph, and the wait for `stream`, in which all calls
            // and launches are.
            let raw = unsafe { DeviceSlice::<u64>::from_raw(memory.address(), len, device) };
            let all_reduce = || {
                let call = comm.all_reduce_in_place(raw, RedOp::Sum);
                call.on(&stream).unwrap();
            };
            all_reduce();
            stream
                .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
                .unwrap();
            all_reduce();
            let graph = stream.end_capture(CUgraphInstantiate_flags(0)).unwrap();
            let graph = graph.unwrap();
            graph.launch().unwrap();
            comm.wait(&stream).unwrap();
            if comm.rank() > 0 {
                has_called.wait();
                // The peer's packets come meanwhile.
                std::thread::sleep(Duration::from_millis(100));
                return;
            }
            all_reduce();
            has_called.wait();
            let said = text(comm.wait(&stream));
            let expected =
                "left the communicator after operation #2 on the device, but operation #3 on";
            assert!(said.contains(expected), "{said}");
            let _ = stream.synchronize();
        });
    }
}
