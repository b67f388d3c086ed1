//! Operations in graphs, which are launched again and between others.

use std::time::Duration;

use spark_ccl_cuda::DeviceBlock;
use spark_ccl_cuda::cudarc::driver::result::{memcpy_dtod_async, memset_d8_async};
use spark_ccl_cuda::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use spark_ccl_cuda::cudarc::driver::{CudaGraph, CudaStream};
use spark_ccl_types::{DType, Operation, ReduceOp};

use crate::kernels::each;
use crate::place::{Case, Place, ROOM, Rank};

pub(crate) fn captured(place: &Place, cases: &[Case]) -> Vec<CudaGraph> {
    captured_of(place, |rank| {
        let own = &place.ranks[rank];
        for case in cases {
            // SAFETY: `place` keeps the rank's buffers, and outlives the graph. They have `ROOM`,
            // which `prepare` checks for each case before a launch, and only this rank's stream
            // uses them.
            unsafe {
                let call = place.call(case, rank);
                own.member.enqueue(&call, &own.stream).unwrap();
            }
        }
    })
}

/// A graph of each rank, of what is enqueued for it.
pub(crate) fn captured_of(place: &Place, enqueue: impl Fn(usize)) -> Vec<CudaGraph> {
    let of_rank = |rank: usize| {
        let own = &place.ranks[rank];
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        own.stream.begin_capture(mode).unwrap();
        enqueue(rank);
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = own.stream.end_capture(flags).unwrap().unwrap();
        graph.upload().unwrap();
        own.stream.synchronize().unwrap();
        graph
    };
    (0..place.ranks.len()).map(of_rank).collect()
}

pub(crate) fn launch(graphs: &[CudaGraph]) {
    for graph in graphs {
        graph.launch().unwrap();
    }
}

fn case(operation: Operation, count: usize, seed: u64) -> Case {
    Case {
        operation,
        dtype: DType::Bf16,
        op: ReduceOp::Sum,
        root: 1,
        count,
        offset: 0,
        in_place: false,
        seed,
    }
}

#[test]
fn graphs_are_launched_again_and_between_other_operations() {
    for (ranks, wire) in each([2, 4, 8]) {
        let Some(place) = Place::with(ranks, Duration::from_secs(5), wire) else {
            return;
        };
        // Each graph ends with the operation that is checked; both protocols are in both.
        let [small, large] =
            [(1000, 1), (300_000, 2)].map(|(count, seed)| case(Operation::AllReduce, count, seed));
        let one_way = [Operation::Broadcast, Operation::Gather].map(|of| case(of, 700, 3));
        let first = captured(&place, &[large, one_way[0], small]);
        let second = captured(&place, &[small, one_way[1], small, large]);
        for turn in 0..100 {
            let inputs = Case {
                seed: 10 + turn,
                ..large
            };
            place.prepare(&inputs);
            launch(&first);
            launch(&second);
            launch(&first);
            if turn % 3 == 0 {
                place.enqueue(&small, None);
            }
            launch(&second);
            place.wait().unwrap();
            place.check(&inputs);
        }
    }
}

/// Kernels may start before what is ahead of them has ended, and let others start.
#[test]
fn copies_around_calls_find_whole_buffers() {
    for ranks in [2, 4] {
        let Some(place) = Place::new(ranks, Duration::from_secs(5)) else {
            return;
        };
        let block = || DeviceBlock::new(&place.context, ROOM).unwrap();
        let sources: Vec<_> = (0..ranks).map(|_| block()).collect();
        let kept: Vec<_> = (0..ranks).map(|_| block()).collect();
        for count in [4, 5000, 200_000, 1_900_000] {
            let case = case(Operation::AllReduce, count, 7);
            place.prepare(&case);
            copy_each(&place, |own, rank| [&own.input, &sources[rank]]);
            let enqueue = |rank: usize| {
                let own = &place.ranks[rank];
                let call = place.call(&case, rank);
                // SAFETY: `place`, `sources` and `kept` keep these buffers until the stream was
                // waited for. All have `ROOM`, enough for the case, as `prepare` has checked, and
                // only this rank's stream uses them.
                unsafe {
                    copy([&sources[rank], &own.input], &own.stream);
                    own.member.enqueue(&call, &own.stream).unwrap();
                    copy([&own.output, &kept[rank]], &own.stream);
                    own.member.enqueue(&call, &own.stream).unwrap();
                    let spoiled = own.input.address();
                    memset_d8_async(spoiled, 0xff, ROOM, own.stream.cu_stream()).unwrap();
                }
            };
            let graphs = captured_of(&place, enqueue);
            for turn in 0..6 {
                if turn % 2 == 0 {
                    launch(&graphs);
                } else {
                    (0..ranks).for_each(enqueue);
                }
                place.wait().unwrap();
                place.check(&case);
                copy_each(&place, |own, rank| [&kept[rank], &own.output]);
                place.check(&case);
            }
        }
    }
}

/// Copies a buffer of each rank to another, and waits.
fn copy_each<'a>(place: &'a Place, buffers: impl Fn(&'a Rank, usize) -> [&'a DeviceBlock; 2]) {
    for (rank, own) in place.ranks.iter().enumerate() {
        // SAFETY: the caller's blocks all have `ROOM`, and live until the rank's stream was waited
        // for, which this function does last.
        unsafe { copy(buffers(own, rank), &own.stream) };
    }
    place.wait().unwrap();
}

/// Enqueues a copy of the first to the second.
///
/// # Safety
/// Both must have `ROOM`, until the copy has run.
unsafe fn copy([from, to]: [&DeviceBlock; 2], stream: &CudaStream) {
    let [from, to] = [from, to].map(DeviceBlock::address);
    // SAFETY: the caller passes blocks of `ROOM` bytes, and keeps them until the copy has run. The
    // stream is borrowed, so it has not been destroyed.
    unsafe { memcpy_dtod_async(to, from, ROOM, stream.cu_stream()).unwrap() };
}
