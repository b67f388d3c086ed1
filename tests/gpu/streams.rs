//! Groups and graphs.

use super::{builder, gpus, text};
use spark_ccl::cuda::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use spark_ccl::cuda::{DeviceMemory, DeviceSlice};
use spark_ccl::{Communicator, RedOp};

#[test]
fn one_thread_works_for_all_gpus() {
    let Some(gpus) = gpus(1) else { return };
    let comms = builder().local(gpus.count).unwrap();
    let mut memory: Vec<DeviceMemory<u32>> = comms
        .iter()
        .map(|comm| comm.alloc_device(1000).unwrap())
        .collect();
    for memory in &mut memory {
        memory.write(&[1; 1000]).unwrap();
    }
    let stream = |comm: &Communicator| comm.context().unwrap().default_stream();
    let round = |memory: &mut [DeviceMemory<u32>]| {
        comms[0].group(|group| {
            for (comm, memory) in comms.iter().zip(memory) {
                let call = comm.all_reduce_in_place(memory, RedOp::Sum);
                call.within(group, &stream(comm));
            }
            Ok(())
        })
    };
    for _ in 0..3 {
        round(&mut memory).unwrap();
    }
    for (comm, memory) in comms.iter().zip(&memory) {
        comm.wait(&stream(comm)).unwrap();
        let mut sums = [0; 1000];
        memory.read(&mut sums).unwrap();
        assert_eq!(sums, [(comms.len() as u32).pow(3); 1000]);
    }
    // What is wrong in a group is said before anything is enqueued, and the next one is fine.
    let said = text(comms[0].group(|group| {
        let call = comms[0].broadcast_in_place(&mut memory[0], comms.len());
        call.within(group, &stream(&comms[0]));
        Ok(())
    }));
    assert!(said.contains("root is"), "{said}");
    round(&mut memory).unwrap();
    for comm in &comms {
        comm.wait(&stream(comm)).unwrap();
    }
}

#[test]
fn buffers_of_cudarc_can_be_freed_after_their_group() {
    let Some(gpus) = gpus(2) else { return };
    let comms = builder().local(gpus.count).unwrap();
    let streams: Vec<_> = comms
        .iter()
        .map(|comm| comm.context().unwrap().new_stream().unwrap())
        .collect();
    let contexts: Vec<_> = comms
        .iter()
        .map(|comm| comm.context().unwrap().new_stream().unwrap())
        .collect();
    for round in 0..20 {
        let mut sums: Vec<_> = streams
            .iter()
            .map(|stream| stream.clone_htod(&[0_i32; 7]).unwrap())
            .collect();
        let memory: Vec<_> = contexts
            .iter()
            .map(|stream| stream.clone_htod(&vec![round; 7]).unwrap())
            .collect();
        comms[0]
            .group(|group| {
                let all = comms.iter().zip(memory).zip(&mut sums).zip(&streams);
                for (((comm, memory), sum), stream) in all {
                    comm.all_reduce(memory, sum, RedOp::Sum)
                        .within(group, stream);
                }
                Ok(())
            })
            .unwrap();
        let others: Vec<_> = contexts
            .iter()
            .map(|stream| stream.clone_htod(&[-1_i32; 7]).unwrap())
            .collect();
        for (stream, sum) in streams.iter().zip(&sums) {
            assert_eq!(
                stream.clone_dtoh(sum).unwrap(),
                [round * comms.len() as i32; 7]
            );
        }
        drop(others);
    }
}

#[test]
fn graphs_are_captured_and_replayed() {
    let Some(gpus) = gpus(1) else { return };
    gpus.each(&builder(), |comm| {
        const REPLAYS: u32 = 5;
        let stream = comm.context().unwrap().new_stream().unwrap();
        let mut memory: DeviceMemory<u64> = comm.alloc_device(100).unwrap();
        memory.write(&[1; 100]).unwrap();
        // SAFETY: the memory lives, and is used in one stream only.
        let raw =
            unsafe { DeviceSlice::<u64>::from_raw(memory.address(), 100, comm.device().unwrap()) };
        // NCCL connects the ranks for the first call, which cannot be captured.
        comm.all_reduce_in_place(raw, RedOp::Max)
            .on(&stream)
            .unwrap();
        stream
            .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            .unwrap();
        for _ in 0..2 {
            comm.all_reduce_in_place(raw, RedOp::Sum)
                .on(&stream)
                .unwrap();
        }
        let graph = stream
            .end_capture(CUgraphInstantiate_flags(0))
            .unwrap()
            .unwrap();
        for _ in 0..REPLAYS {
            graph.launch().unwrap();
        }
        comm.wait(&stream).unwrap();
        let mut seen = [0; 100];
        memory.read(&mut seen).unwrap();
        assert_eq!(seen, [(comm.size() as u64).pow(2 * REPLAYS); 100]);
        drop(graph);
        comm.finalize().unwrap();
    });
}

#[test]
fn streams_of_other_devices_are_refused() {
    let Some(gpus) = gpus(2) else { return };
    let comms = builder().local(gpus.count).unwrap();
    let theirs = comms[1].context().unwrap().default_stream();
    let mut memory: DeviceMemory<f32> = comms[0].alloc_device(4).unwrap();
    let said = text(
        comms[0]
            .all_reduce_in_place(&mut memory, RedOp::Sum)
            .on(&theirs),
    );
    assert!(
        said.contains("device 1") && said.contains("device 0"),
        "{said}"
    );
}
