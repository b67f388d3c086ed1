//! Graphs with calls of our own kernels, launched often, and in turns with others and with calls.

use std::sync::Arc;

use spark_ccl::cuda::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use spark_ccl::cuda::cudarc::driver::{CudaGraph, CudaStream};
use spark_ccl::cuda::{DeviceMemory, DeviceSlice};
use spark_ccl::{Communicator, RedOp, Reducer};
use spark_ccl_testing::scramble;

use super::{builder, gpus, stream_of};

const LEN: usize = 1009;

/// Odd numbers in sum, so that products of them never become 0.
fn factor(rank: usize) -> u64 {
    if rank == 0 { 3 } else { 2 * rank as u64 }
}

fn value(rank: usize, place: usize) -> u64 {
    scramble(rank as u64, place as u64)
}

/// A rank's values, and a graph that replaces them by the sum over all ranks of each one's times
/// its factor.
struct Lane {
    memory: DeviceMemory<u64>,
    raw: DeviceSlice<u64>,
    graph: CudaGraph,
    /// How often that has been done.
    times: u32,
}

impl Lane {
    fn new(comm: &Communicator, stream: &Arc<CudaStream>) -> Self {
        let mut memory = comm.alloc_device(LEN).unwrap();
        let values: Vec<_> = (0..LEN).map(|place| value(comm.rank(), place)).collect();
        memory.write(&values).unwrap();
        let device = comm.device().unwrap();
        // SAFETY: the lane keeps `memory` beside the graph, and uses it in `stream` only.
        let raw = unsafe { DeviceSlice::from_raw(memory.address(), LEN, device) };
        stream
            .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            .unwrap();
        sum(comm, raw, stream);
        let graph = stream.end_capture(CUgraphInstantiate_flags(0)).unwrap();
        Self {
            memory,
            raw,
            graph: graph.unwrap(),
            times: 0,
        }
    }

    fn launch(&mut self) {
        self.graph.launch().unwrap();
        self.times += 1;
    }

    fn call(&mut self, comm: &Communicator, stream: &Arc<CudaStream>) {
        sum(comm, self.raw, stream);
        self.times += 1;
    }

    fn check(&self, comm: &Communicator) {
        let ranks = 0..comm.size();
        let times = ranks.clone().map(factor).sum::<u64>();
        let times = times.wrapping_pow(self.times - 1);
        let expected = |place| {
            let first = ranks.clone().fold(0_u64, |sum, rank| {
                sum.wrapping_add(value(rank, place).wrapping_mul(factor(rank)))
            });
            first.wrapping_mul(times)
        };
        let mut seen = vec![0; LEN];
        self.memory.read(&mut seen).unwrap();
        assert!(seen.into_iter().eq((0..LEN).map(expected)));
    }
}

fn sum(comm: &Communicator, memory: DeviceSlice<u64>, stream: &Arc<CudaStream>) {
    let op = Reducer::PreMulSum(factor(comm.rank()));
    comm.all_reduce_in_place(memory, op).on(stream).unwrap();
}

#[test]
fn a_graph_is_launched_a_thousand_times() {
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&builder(), |comm| {
        let stream = stream_of(&comm);
        let mut lane = Lane::new(&comm, &stream);
        for _ in 0..1000 {
            lane.launch();
        }
        comm.wait(&stream).unwrap();
        lane.check(&comm);
        drop(lane);
        comm.finalize().unwrap();
    });
}

#[test]
fn calls_of_a_graph_run_one_after_the_other_in_whatever_streams() {
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&builder(), |comm| {
        let streams = [(); 2].map(|()| stream_of(&comm));
        let [first, second] = &streams;
        let mut lanes = [(); 2].map(|()| Lane::new(&comm, first));
        first
            .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)
            .unwrap();
        second.join(first).unwrap();
        // Only the communicator connects them. Of each memory, the last use is in the other stream.
        for stream in [first, second, second, first] {
            for lane in &mut lanes {
                lane.call(&comm, stream);
            }
        }
        first.join(second).unwrap();
        let graph = first.end_capture(CUgraphInstantiate_flags(0)).unwrap();
        let graph = graph.unwrap();
        for _ in 0..100 {
            graph.launch().unwrap();
        }
        comm.wait(first).unwrap();
        for lane in &mut lanes {
            // A launch is four calls.
            lane.times = 400;
            lane.check(&comm);
        }
        drop((graph, lanes));
        comm.finalize().unwrap();
    });
}

#[test]
fn two_graphs_and_calls_take_turns() {
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&builder(), |comm| {
        let stream = stream_of(&comm);
        let mut lanes = [(); 2].map(|()| Lane::new(&comm, &stream));
        for round in 0..100 {
            let [first, second] = &mut lanes;
            first.launch();
            second.launch();
            if round % 3 == 0 {
                first.call(&comm, &stream);
            }
            second.launch();
        }
        comm.wait(&stream).unwrap();
        for lane in &lanes {
            lane.check(&comm);
        }
        drop(lanes);
        comm.finalize().unwrap();
    });
}

/// In turns, so that warps which take no part in one call have their rounds right in the next.
#[test]
fn calls_on_grids_of_different_sizes_take_turns() {
    const LENS: [usize; 5] = [8, 1 << 17, 1 << 19, (1 << 19) + 1, 1 << 21];
    const ROUNDS: u32 = 4;
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&builder(), |comm| {
        let stream = stream_of(&comm);
        let values = |rank, len| (0..len).map(move |place| value(rank, place));
        let memory = LENS.map(|len| {
            let mut memory = comm.alloc_device(len).unwrap();
            let own: Vec<_> = values(comm.rank(), len).collect();
            memory.write(&own).unwrap();
            memory
        });
        let device = comm.device().unwrap();
        let calls = || {
            for memory in &memory {
                // SAFETY: `memory` outlives the calls and the graphs, which are waited for, and all
                // of them are in `stream`.
                let raw =
                    unsafe { DeviceSlice::<u64>::from_raw(memory.address(), memory.len(), device) };
                comm.all_reduce_in_place(raw, RedOp::Sum)
                    .on(&stream)
                    .unwrap();
            }
        };
        calls();
        stream
            .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            .unwrap();
        calls();
        let graph = stream.end_capture(CUgraphInstantiate_flags(0)).unwrap();
        let graph = graph.unwrap();
        for _ in 0..ROUNDS {
            graph.launch().unwrap();
            calls();
        }
        comm.wait(&stream).unwrap();
        // Each call after the first multiplies by the number of ranks.
        let times = (comm.size() as u64).wrapping_pow(2 * ROUNDS);
        for memory in &memory {
            let mut seen = vec![0; memory.len()];
            memory.read(&mut seen).unwrap();
            for (place, seen) in seen.into_iter().enumerate() {
                let sum =
                    (0..comm.size()).fold(0, |sum: u64, rank| sum.wrapping_add(value(rank, place)));
                assert_eq!(seen, sum.wrapping_mul(times), "{place} of {}", memory.len());
            }
        }
        drop(graph);
        comm.finalize().unwrap();
    });
}
