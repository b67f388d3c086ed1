//! Groups and graphs.

use std::sync::Arc;
use std::time::Duration;

use spark_ccl::cuda::cudarc::driver::sys::{
    CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode,
};
use spark_ccl::cuda::cudarc::driver::{CudaContext, DriverError};
use spark_ccl::cuda::{
    DeviceMemory, DevicePart, DeviceSlice, Registration, adopt_context, borrow_stream,
};
use spark_ccl::{Backend, Communicator, RedOp};

use super::{BACKEND, builder, gpus, in_another_process, stream_of, text};

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
    let streams: Vec<_> = comms.iter().map(stream_of).collect();
    let stream = |comm: &Communicator| &streams[comm.rank()];
    let round = |memory: &mut [DeviceMemory<u32>]| {
        comms[0].group(|group| {
            for (comm, memory) in comms.iter().zip(memory) {
                let call = comm.all_reduce_in_place(memory, RedOp::Sum);
                call.within(group, stream(comm));
            }
            Ok(())
        })
    };
    for _ in 0..3 {
        round(&mut memory).unwrap();
    }
    for (comm, memory) in comms.iter().zip(&memory) {
        comm.wait(stream(comm)).unwrap();
        let mut sums = [0; 1000];
        memory.read(&mut sums).unwrap();
        assert_eq!(sums, [(comms.len() as u32).pow(3); 1000]);
    }
    // What is wrong in a group is said before anything is enqueued, and the next one is fine.
    let said = text(comms[0].group(|group| {
        let call = comms[0].broadcast_in_place(&mut memory[0], comms.len());
        call.within(group, stream(&comms[0]));
        Ok(())
    }));
    assert!(said.contains("root is"), "{said}");
    round(&mut memory).unwrap();
    for comm in &comms {
        comm.wait(stream(comm)).unwrap();
    }
}

#[test]
fn a_programs_own_context_can_be_adopted() {
    let Some(_gpus) = gpus(1) else { return };
    in_another_process("streams::context_of_the_programs_own");
}

/// In another process: here, contexts may be in use.
#[test]
#[ignore = "a process that another test starts"]
fn context_of_the_programs_own() {
    let Some(_gpus) = gpus(1) else { return };
    let [own, other] = [(); 2].map(|()| CudaContext::new(0).unwrap());
    adopt_context(&own).unwrap();
    let stream = own.new_stream().unwrap();
    let mut sums = stream.clone_htod(&[3_u32; 100]).unwrap();
    let comm = builder().local(1).unwrap().remove(0);
    assert!(Arc::ptr_eq(comm.context().unwrap(), &own));
    // As another library passes it: by its handle.
    // SAFETY: `stream` is a variable of this test, and is dropped after `raw`, which was made
    // later.
    let raw = unsafe { borrow_stream(&own, stream.cu_stream()) }.unwrap();
    for stream in [&stream, &raw, &own.default_stream()] {
        comm.all_reduce_in_place(&mut sums, RedOp::Sum)
            .on(stream)
            .unwrap();
        comm.wait(stream).unwrap();
    }
    assert_eq!(stream.clone_dtoh(&sums).unwrap(), [3; 100]);
    let refused = comm.all_reduce_in_place(&mut sums, RedOp::Sum);
    let said = text(refused.on(&other.default_stream()));
    assert!(said.contains("of another context"), "{said}");
    let refused = comm.all_reduce_in_place(&mut sums, RedOp::Sum);
    let said = text(refused.on(&own.per_thread_stream()));
    assert!(said.contains("another one in each thread"), "{said}");
    let said = text(adopt_context(&other));
    assert!(
        said.contains("another object of this context is in use"),
        "{said}"
    );
    comm.finalize().unwrap();
}

#[test]
fn buffers_of_cudarc_can_be_freed_after_their_group() {
    let Some(gpus) = gpus(2) else { return };
    let comms = builder().local(gpus.count).unwrap();
    let streams: Vec<_> = comms
        .iter()
        .map(|comm| comm.context().unwrap().new_stream().unwrap())
        .collect();
    let owners: Vec<_> = comms
        .iter()
        .map(|comm| comm.context().unwrap().new_stream().unwrap())
        .collect();
    for round in 0..20 {
        let mut sums: Vec<_> = streams
            .iter()
            .map(|stream| stream.clone_htod(&[0_i32; 7]).unwrap())
            .collect();
        let memory: Vec<_> = owners
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
        let others: Vec<_> = owners
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
        // SAFETY: `memory` outlives the graph and the calls, all of which are in `stream`.
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
fn messages_in_groups_wait_for_nobody() {
    if BACKEND != Backend::Nccl {
        return;
    }
    let Some(gpus) = gpus(2) else { return };
    let comms = builder().local(gpus.count).unwrap();
    let size = comms.len();
    let stream = |comm: &Communicator| comm.context().unwrap().default_stream();
    let mut buffers: Vec<[DeviceMemory<u32>; 2]> = Vec::new();
    for comm in &comms {
        let mut send = comm.alloc_device(100).unwrap();
        send.write(&[comm.rank() as u32; 100]).unwrap();
        buffers.push([send, comm.alloc_device(100).unwrap()]);
    }
    comms[0]
        .group(|group| {
            for (comm, [send, recv]) in comms.iter().zip(&mut buffers) {
                let (next, previous) = ((comm.rank() + 1) % size, (comm.rank() + size - 1) % size);
                let call = comm.send_recv(&*send, next, recv, previous);
                call.within(group, &stream(comm));
            }
            Ok(())
        })
        .unwrap();
    for (comm, [_, recv]) in comms.iter().zip(&buffers) {
        // The stream is of this rank's device, even if another device is current.
        comm.wait(&stream(comm)).unwrap();
        let mut seen = [0; 100];
        recv.read(&mut seen).unwrap();
        assert_eq!(seen, [((comm.rank() + size - 1) % size) as u32; 100]);
    }
}

#[test]
fn captures_of_the_strict_kind_are_left_alone() {
    let Some(_gpus) = gpus(1) else { return };
    let comm = builder().local(1).unwrap().remove(0);
    let stream = comm.context().unwrap().new_stream().unwrap();
    let mut memory: DeviceMemory<u64> = comm.alloc_device(100).unwrap();
    memory.write(&[1; 100]).unwrap();
    // SAFETY: `memory` outlives the graphs and the calls, all of which are in `stream`.
    let raw =
        unsafe { DeviceSlice::<u64>::from_raw(memory.address(), 100, comm.device().unwrap()) };
    // With a call that is marked, and with one that has been waited for.
    for waits in [false, true] {
        comm.all_reduce_in_place(&mut memory, RedOp::Sum)
            .on(&stream)
            .unwrap();
        if waits {
            comm.wait(&stream).unwrap();
        }
        stream
            .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL)
            .unwrap();
        comm.all_reduce_in_place(raw, RedOp::Sum)
            .on(&stream)
            .unwrap();
        // The guard looks a few times meanwhile.
        std::thread::sleep(Duration::from_millis(300));
        let refused = comm.all_reduce_in_place(&mut memory, RedOp::Sum);
        let said = text(refused.on(&stream));
        assert!(said.contains("capture calls of"), "{said}");
        let graph = stream.end_capture(CUgraphInstantiate_flags(0)).unwrap();
        graph.unwrap().launch().unwrap();
        comm.wait(&stream).unwrap();
    }
    comm.finalize().unwrap();
}

#[test]
fn memory_without_elements_is_not_captured_either() {
    let Some(_gpus) = gpus(1) else { return };
    let comm = builder().local(1).unwrap().remove(0);
    let stream = comm.context().unwrap().new_stream().unwrap();
    let [mut first, mut second] = [(); 2].map(|()| comm.alloc_device::<u64>(0).unwrap());
    let ours = stream.alloc_zeros::<u64>(1).unwrap();
    stream
        .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        .unwrap();
    let refused = [
        text(comm.all_reduce_in_place(&mut first, RedOp::Sum).on(&stream)),
        text(
            comm.all_reduce(DevicePart::of(&ours, 0..0), &mut second, RedOp::Sum)
                .on(&stream),
        ),
    ];
    for said in refused {
        assert!(said.contains("capture calls of"), "{said}");
    }
    // SAFETY: the slice has no elements, so no call reads or writes any, and the graph is never
    // launched.
    let none = unsafe { DeviceSlice::<u64>::from_raw(0, 0, comm.device().unwrap()) };
    comm.all_reduce_in_place(none, RedOp::Sum)
        .on(&stream)
        .unwrap();
    stream.end_capture(CUgraphInstantiate_flags(0)).unwrap();
    comm.finalize().unwrap();
}

#[test]
fn memory_of_a_stream_that_captures_is_not_drawn_into_another() {
    let Some(_gpus) = gpus(1) else { return };
    let comm = builder().local(1).unwrap().remove(0);
    let context = comm.context().unwrap();
    let [captures, other] = [(); 2].map(|()| context.new_stream().unwrap());
    let mut memory: DeviceMemory<u64> = comm.alloc_device(100).unwrap();
    memory.write(&[1; 100]).unwrap();
    let mut seen = [0; 100];
    // SAFETY: `memory` outlives the graph, which is waited for. It runs after calls in `other` that
    // were waited for (`read`), and before the next one, which is made after the wait.
    let raw =
        unsafe { DeviceSlice::<u64>::from_raw(memory.address(), 100, comm.device().unwrap()) };
    let sum = |memory: &mut DeviceMemory<u64>, stream| {
        let call = comm.all_reduce_in_place(memory, RedOp::Sum);
        call.on(stream)
    };
    sum(&mut memory, &captures).unwrap();
    captures
        .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)
        .unwrap();
    comm.all_reduce_in_place(raw, RedOp::Sum)
        .on(&captures)
        .unwrap();
    // It waits for the call before the capture, and not for the stream.
    sum(&mut memory, &other).unwrap();
    memory.read(&mut seen).unwrap();
    let graph = captures.end_capture(CUgraphInstantiate_flags(0)).unwrap();
    graph.unwrap().launch().unwrap();
    captures.synchronize().unwrap();
    sum(&mut memory, &other).unwrap();
    memory.read(&mut seen).unwrap();
    assert_eq!(seen, [1; 100]);
}

#[test]
fn errors_that_cudarc_keeps_for_others_are_left_to_them() {
    let Some(_gpus) = gpus(1) else { return };
    let comm = builder().local(1).unwrap().remove(0);
    let context = comm.context().unwrap();
    let [stream, other] = [(); 2].map(|()| context.new_stream().unwrap());
    let mut theirs = stream.clone_htod(&[1_u64; 100]).unwrap();
    let kept = DriverError(CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    context.record_err(Err::<(), _>(kept));
    let mut ours: DeviceMemory<u64> = comm.alloc_device(100).unwrap();
    ours.write(&[1; 100]).unwrap();
    comm.register_device(&ours, Registration::Local).unwrap();
    for stream in [&stream, &other] {
        comm.all_reduce_in_place(&mut ours, RedOp::Max)
            .on(stream)
            .unwrap();
        comm.all_reduce_in_place(&mut theirs, RedOp::Max)
            .on(stream)
            .unwrap();
    }
    comm.all_reduce(&theirs, &mut ours, RedOp::Max)
        .run()
        .unwrap();
    comm.wait(&stream).unwrap();
    let mut seen = [0; 100];
    ours.read(&mut seen).unwrap();
    assert_eq!(seen, [1; 100]);
    drop(ours);
    assert_eq!(context.check_err(), Err(kept));
}

#[test]
fn a_communicator_may_go_before_its_graphs() {
    let Some(gpus) = gpus(1) else { return };
    gpus.each(&builder(), |comm| {
        let stream = comm.context().unwrap().new_stream().unwrap();
        let memory: DeviceMemory<u64> = comm.alloc_device(100).unwrap();
        let device = comm.device().unwrap();
        // SAFETY: `memory` outlives the graph and the calls, all of which are in `stream`.
        let raw = unsafe { DeviceSlice::<u64>::from_raw(memory.address(), 100, device) };
        comm.all_reduce_in_place(raw, RedOp::Max)
            .on(&stream)
            .unwrap();
        comm.wait(&stream).unwrap();
        stream
            .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)
            .unwrap();
        comm.all_reduce_in_place(raw, RedOp::Max)
            .on(&stream)
            .unwrap();
        let graph = stream.end_capture(CUgraphInstantiate_flags(0)).unwrap();
        comm.barrier().run().unwrap();
        drop(comm);
        drop(graph);
    });
}

/// The handles of the legacy and the per-thread default stream.
const DEFAULTS: [usize; 3] = [0, 1, 2];

#[test]
fn streams_are_taken_by_their_handles() {
    let Some(_gpus) = gpus(1) else { return };
    let comm = builder().local(1).unwrap().remove(0);
    let context = comm.context().unwrap();
    let own = context.new_stream().unwrap();
    let [null, legacy, per_thread] = DEFAULTS.map(std::ptr::without_provenance_mut);
    let mut memory: DeviceMemory<u32> = comm.alloc_device(100).unwrap();
    memory.write(&[3; 100]).unwrap();
    for raw in [own.cu_stream(), null, legacy] {
        // SAFETY: two of the streams are default ones, which always exist. The third is `own`,
        // which outlives `stream`.
        let stream = unsafe { borrow_stream(context, raw) }.unwrap();
        comm.all_reduce_in_place(&mut memory, RedOp::Sum)
            .on(&stream)
            .unwrap();
        comm.wait(&stream).unwrap();
    }
    let mut seen = [0; 100];
    memory.read(&mut seen).unwrap();
    assert_eq!(seen, [3; 100]);
    // It was only lent.
    own.synchronize().unwrap();
    // SAFETY: `borrow_stream` refuses this handle, as the next line checks, so nothing uses it.
    let said = text(unsafe { borrow_stream(context, per_thread) });
    assert!(said.contains("another one in each thread"), "{said}");
    comm.finalize().unwrap();
}

#[test]
fn handles_of_other_devices_streams_are_refused() {
    let Some(gpus) = gpus(2) else { return };
    let comms = builder().local(gpus.count).unwrap();
    if comms[0].device() == comms[1].device() {
        return;
    }
    let theirs = comms[1].context().unwrap().new_stream().unwrap();
    // SAFETY: `theirs` outlives the call, which refuses it, so nothing is made of it.
    let said = text(unsafe { borrow_stream(comms[0].context().unwrap(), theirs.cu_stream()) });
    assert!(
        said.contains("device 0") && said.contains("another context"),
        "{said}"
    );
}

#[test]
fn streams_and_memory_of_other_contexts_are_refused() {
    let Some(_gpus) = gpus(1) else { return };
    let comm = builder().local(1).unwrap().remove(0);
    // The same context for CUDA, but cudarc would keep nothing in order between the two objects.
    let other = CudaContext::new(comm.device().unwrap()).unwrap();
    let ours = comm.context().unwrap().default_stream();
    let theirs = other.default_stream();
    let mut memory = theirs.clone_htod(&[1.0_f32]).unwrap();
    let said = text(comm.all_reduce_in_place(&mut memory, RedOp::Sum).on(&ours));
    assert!(said.contains("Communicator::context"), "{said}");
    let mut memory = ours.clone_htod(&[1.0_f32]).unwrap();
    let said = text(
        comm.all_reduce_in_place(&mut memory, RedOp::Sum)
            .on(&theirs),
    );
    assert!(said.contains("Communicator::context"), "{said}");
    let mut host = [0.0_f32];
    let said = text(comm.all_reduce(&memory, &mut host, RedOp::Sum).run());
    assert!(said.contains("host memory"), "{said}");
}

#[test]
fn streams_of_other_devices_are_refused() {
    let Some(gpus) = gpus(2) else { return };
    let comms = builder().local(gpus.count).unwrap();
    if comms[0].device() == comms[1].device() {
        return;
    }
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
