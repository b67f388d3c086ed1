//! Operations in graphs, which are launched again and between others.

use std::time::Duration;

use spark_ccl_cuda::cudarc::driver::CudaGraph;
use spark_ccl_cuda::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use spark_ccl_types::{DType, Operation, ReduceOp};

use crate::place::{Case, Place};

pub(crate) fn captured(place: &Place, cases: &[Case]) -> Vec<CudaGraph> {
    captured_of(place, |rank| {
        let own = &place.ranks[rank];
        for case in cases {
            // SAFETY: the buffers are long enough, and live longer than the graph.
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
    for ranks in [2, 4, 8] {
        let Some(place) = Place::new(ranks, Duration::from_secs(5)) else {
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
