//! Who waits for a call in a stream, and who does not.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use spark_ccl::cuda::cudarc::driver::result::stream::StreamKind;
use spark_ccl::cuda::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use spark_ccl::cuda::cudarc::driver::{CudaEvent, CudaStream, DriverError, result};
use spark_ccl::cuda::{DeviceMemory, DevicePart, DeviceSlice, devices};
use spark_ccl::{Communicator, RedOp};
use spark_ccl_cuda::EventPool;
use spark_ccl_testing::{Need, has};

use super::{Gpus, builder, gpus, in_another_process, text};

/// Has come after so long, if it can at all.
const A_WHILE: Duration = Duration::from_millis(100);
const LEN: usize = 1 << 16;

/// What has been enqueued in a stream.
fn so_far(stream: &CudaStream) -> CudaEvent {
    stream.record_event(None).unwrap()
}

/// Waits for it, as long as the test may take.
fn comes(event: &CudaEvent) {
    while !event.try_is_complete().unwrap() {
        std::thread::yield_now();
    }
}

fn streams<const N: usize>(comm: &Communicator) -> [Arc<CudaStream>; N] {
    let context = comm.context().unwrap();
    std::array::from_fn(|_| context.new_stream().unwrap())
}

/// Rank 0 goes on while its gather waits for the other ranks, which call when `meanwhile` is over.
/// They all have met for the call before.
///
/// What `meanwhile` returns is dropped after the gather. NCCL gives the memory of a communicator
/// back when that is dropped; CUDA then waits for all that runs on the device, and lets no other
/// thread destroy a stream meanwhile.
fn while_a_gather_waits<S, K>(
    gpus: &Gpus,
    prepare: impl Fn(&Communicator, &CudaStream) -> S + Sync,
    gather: impl Fn(&Communicator, &mut S, &mut DeviceMemory<u32>, &Arc<CudaStream>) + Sync,
    meanwhile: impl Fn(&Communicator, S, &CudaEvent) -> K + Sync,
) {
    let others_may_call = Barrier::new(gpus.count);
    gpus.each(&builder(), |comm| {
        let [calls] = streams(&comm);
        let mut own = prepare(&comm, &calls);
        let mut all = comm.alloc_device(LEN * comm.size()).unwrap();
        gather(&comm, &mut own, &mut all, &calls);
        comm.wait(&calls).unwrap();
        comm.barrier().run().unwrap();
        if comm.rank() > 0 {
            others_may_call.wait();
        }
        gather(&comm, &mut own, &mut all, &calls);
        let _kept = if comm.rank() == 0 {
            let gathered = so_far(&calls);
            let kept = meanwhile(&comm, own, &gathered);
            assert!(!gathered.try_is_complete().unwrap());
            others_may_call.wait();
            Some(kept)
        } else {
            None
        };
        comm.wait(&calls).unwrap();
        let mut seen = vec![0; LEN * comm.size()];
        all.read(&mut seen).unwrap();
        for (rank, block) in seen.chunks_exact(LEN).enumerate() {
            let expected = rank as u32 + 1;
            assert!(block.iter().all(|&value| value == expected), "rank {rank}");
        }
        comm.finalize().unwrap();
    });
}

fn values(comm: &Communicator) -> Vec<u32> {
    vec![comm.rank() as u32 + 1; LEN]
}

/// Device memory with the rank's values.
fn memory(comm: &Communicator) -> DeviceMemory<u32> {
    let mut memory = comm.alloc_device(LEN).unwrap();
    memory.write(&values(comm)).unwrap();
    memory
}

#[test]
fn a_call_holds_up_the_next_user_of_cudarcs_buffer_and_nobody_else() {
    let Some(gpus) = gpus(2) else { return };
    for of_a_part in [false, true] {
        while_a_gather_waits(
            &gpus,
            |comm, _| {
                let [compute] = streams(comm);
                let own = compute.clone_htod(&values(comm)).unwrap();
                (own, compute.alloc_zeros::<u32>(LEN).unwrap(), compute)
            },
            |comm, (own, ..), all, calls| {
                if of_a_part {
                    let part = DevicePart::of(own, 0..LEN);
                    comm.all_gather(part, all).on(calls).unwrap();
                } else {
                    comm.all_gather(&*own, all).on(calls).unwrap();
                }
            },
            |_, (mut own, mut other, compute), gathered| {
                // The stream that the buffer was made with goes on ...
                compute.memset_zeros(&mut other).unwrap();
                comes(&so_far(&compute));
                assert!(!gathered.try_is_complete().unwrap());
                // ... until it writes there.
                compute.memset_zeros(&mut own).unwrap();
                let written = so_far(&compute);
                std::thread::sleep(A_WHILE);
                assert!(!written.try_is_complete().unwrap());
            },
        );
    }
}

#[test]
fn a_later_read_makes_cudarc_forget_no_call() {
    let Some(gpus) = gpus(2) else { return };
    while_a_gather_waits(
        &gpus,
        |comm, _| {
            let [owner, other] = streams(comm);
            let own = owner.clone_htod(&values(comm)).unwrap();
            (own, other.alloc_zeros::<u32>(LEN).unwrap(), other)
        },
        |comm, (own, ..), all, calls| {
            comm.all_gather(&*own, all).on(calls).unwrap();
        },
        |_, (mut own, mut copy, other), _| {
            // cudarc has one event for all reads: this one's from now on.
            other.memcpy_dtod(&own, &mut copy).unwrap();
            other.memset_zeros(&mut own).unwrap();
            // Freed memory is the next one's.
            drop(own);
            drop(other.clone_htod(&vec![7_u32; LEN]).unwrap());
        },
    );
}

#[test]
fn two_reads_of_a_group_are_both_waited_for() {
    let Some(gpus) = gpus(2) else { return };
    while_a_gather_waits(
        &gpus,
        |comm, _| {
            let [owner, others] = streams(comm);
            let own = owner.clone_htod(&values(comm)).unwrap();
            // One rank's: its calls wait for nobody.
            let alone = comm.split(Some(comm.rank() as u32), 0).unwrap().unwrap();
            let copy: DeviceMemory<u32> = alone.alloc_device(LEN).unwrap();
            (own, copy, alone, owner, others)
        },
        |comm, (own, copy, alone, _, others), all, calls| {
            comm.group(|group| {
                comm.all_gather(&*own, all).within(group, calls);
                let call = alone.all_reduce(&*own, copy, RedOp::Sum);
                call.within(group, others);
                Ok(())
            })
            .unwrap();
        },
        |_, (mut own, _, alone, owner, _), _| {
            owner.memset_zeros(&mut own).unwrap();
            // Freed memory is the next one's. (A copy from ordinary host memory would keep this
            // thread until the stream has come to it.)
            drop(own);
            drop(owner.alloc_zeros::<u32>(LEN).unwrap());
            alone
        },
    );
}

#[test]
fn of_two_ends_in_a_stream_only_the_later_one_follows() {
    let Some(_gpus) = gpus(1) else { return };
    let comm = builder().local(1).unwrap().remove(0);
    let [stream, other] = streams(&comm);
    let ends = EventPool::new(Arc::clone(comm.context().unwrap()));
    let [first, elsewhere, last] =
        [&stream, &other, &stream].map(|stream| ends.record(stream).unwrap());
    assert!(last.follows(&first));
    // Threads may note them the other way round.
    assert!(!first.follows(&last));
    assert!(!last.follows(&elsewhere));
    // Of two pools, nothing tells which was recorded first.
    let others = EventPool::new(Arc::clone(comm.context().unwrap()));
    let unrelated = others.record(&stream).unwrap();
    assert!(!unrelated.follows(&last) && !last.follows(&unrelated));
}

#[test]
fn a_call_holds_up_only_who_writes_to_our_memory() {
    let Some(gpus) = gpus(2) else { return };
    while_a_gather_waits(
        &gpus,
        |comm, _| {
            let own = memory(comm);
            // One rank's: its calls wait for nobody.
            let alone = comm.split(Some(comm.rank() as u32), 0).unwrap().unwrap();
            let mut copy: DeviceMemory<u32> = alone.alloc_device(LEN).unwrap();
            let [others] = streams(comm);
            alone
                .all_reduce(&own, &mut copy, RedOp::Sum)
                .on(&others)
                .unwrap();
            alone.wait(&others).unwrap();
            (own, copy, alone, others)
        },
        |comm, (own, ..), all, calls| {
            comm.all_gather(&*own, all).on(calls).unwrap();
        },
        |_, (mut own, mut copy, alone, others), gathered| {
            alone
                .all_reduce(&own, &mut copy, RedOp::Sum)
                .on(&others)
                .unwrap();
            comes(&so_far(&others));
            let mut seen = vec![0; LEN];
            own.read(&mut seen).unwrap();
            assert_eq!(seen, vec![1; LEN]);
            assert!(!gathered.try_is_complete().unwrap());
            alone
                .all_reduce(&copy, &mut own, RedOp::Sum)
                .on(&others)
                .unwrap();
            let written = so_far(&others);
            std::thread::sleep(A_WHILE);
            assert!(!written.try_is_complete().unwrap());
            alone
        },
    );
}

/// Fills `len` numbers at an address in a stream, as a kernel of the program's would.
fn fill(stream: &CudaStream, address: u64, len: usize) -> Result<(), DriverError> {
    // SAFETY: each test passes an address within its memory with `len` numbers from there on. The
    // memory's block keeps it until the fill has run: the tests call this within `write_in`.
    unsafe { result::memset_d8_async(address, 1, 4 * len, stream.cu_stream()) }
}

#[test]
fn the_programs_own_writes_wait_for_calls_and_its_reads_for_writes() {
    let Some(gpus) = gpus(2) else { return };
    while_a_gather_waits(
        &gpus,
        |comm, _| memory(comm),
        |comm, own, all, calls| {
            comm.all_gather(&*own, all).on(calls).unwrap();
        },
        |comm, mut own, gathered| {
            let [reads, writes, reads_again] = streams(comm);
            own.read_in(&reads, |_| ()).unwrap();
            comes(&so_far(&reads));
            assert!(!gathered.try_is_complete().unwrap());
            let filled = own.write_in(&writes, |address| fill(&writes, address, LEN));
            filled.unwrap().unwrap();
            own.view(1..2)
                .unwrap()
                .read_in(&reads_again, |_| ())
                .unwrap();
            let ends = [so_far(&writes), so_far(&reads_again)];
            std::thread::sleep(A_WHILE);
            assert!(ends.iter().all(|end| !end.try_is_complete().unwrap()));
        },
    );
}

#[test]
fn calls_wait_for_what_the_program_writes() {
    let Some(gpus) = gpus(1) else { return };
    gpus.each(&builder(), |comm| {
        let [writes, calls] = streams(&comm);
        let mut memory: DeviceMemory<u32> = comm.alloc_device(LEN).unwrap();
        for _ in 0..20 {
            memory.write(&vec![7; LEN]).unwrap();
            let filled = memory.write_in(&writes, |address| fill(&writes, address, LEN));
            filled.unwrap().unwrap();
            comm.all_reduce_in_place(&mut memory, RedOp::Sum)
                .on(&calls)
                .unwrap();
            let mut seen = vec![0; LEN];
            memory.read(&mut seen).unwrap();
            let sum = 0x0101_0101 * comm.size() as u32;
            assert!(seen.iter().all(|&value| value == sum), "{:x}", seen[0]);
        }
        comm.finalize().unwrap();
    });
}

#[test]
fn memory_whose_use_has_no_end_is_not_used_again() {
    let Some(_gpus) = gpus(1) else { return };
    in_another_process("order::use_without_end");
}

/// In another process: the memory is never freed, and keeps the context of its device.
#[test]
#[ignore = "a process that another test starts"]
fn use_without_end() {
    let Some(_gpus) = gpus(1) else { return };
    let comm = builder().local(1).unwrap().remove(0);
    let [stream] = streams(&comm);
    let mut memory: DeviceMemory<u32> = comm.alloc_device(10).unwrap();
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    let begun = memory.write_in(&stream, |_| stream.begin_capture(mode));
    begun.unwrap().unwrap();
    let said = text(memory.read_in(&stream, |_| ()));
    assert!(said.contains("a graph may run when"), "{said}");
    stream.end_capture(CUgraphInstantiate_flags(0)).unwrap();
    let said = text(memory.read(&mut [0; 10]));
    assert!(said.contains("cuEventRecord"), "{said}");
}

#[test]
fn a_write_to_a_part_makes_the_memory_forget_no_read_of_another() {
    let Some(gpus) = gpus(2) else { return };
    while_a_gather_waits(
        &gpus,
        |comm, _| {
            let mut own: DeviceMemory<u32> = comm.alloc_device(2 * LEN).unwrap();
            own.view_mut(0..LEN).unwrap().write(&values(comm)).unwrap();
            // One rank's: its calls wait for nobody.
            let alone = comm.split(Some(comm.rank() as u32), 0).unwrap().unwrap();
            let mut other: DeviceMemory<u32> = alone.alloc_device(LEN).unwrap();
            other.write(&vec![9; LEN]).unwrap();
            let [others] = streams(comm);
            (own, other, alone, others)
        },
        |comm, (own, other, alone, others), all, calls| {
            let (read, written) = own.split_at_mut(LEN).unwrap();
            comm.group(|group| {
                comm.all_gather(read, all).within(group, calls);
                let call = alone.all_reduce(&*other, written, RedOp::Sum);
                call.within(group, others);
                Ok(())
            })
            .unwrap();
        },
        |comm, (mut own, other, alone, others), _| {
            comes(&so_far(&others));
            let mut seen = vec![0; LEN];
            own.view(LEN..2 * LEN).unwrap().read(&mut seen).unwrap();
            assert_eq!(seen, vec![9; LEN]);
            let [writes] = streams(comm);
            own.write_in(&writes, |_| ()).unwrap();
            let written = so_far(&writes);
            std::thread::sleep(A_WHILE);
            assert!(!written.try_is_complete().unwrap());
            (alone, other)
        },
    );
}

#[test]
fn dropping_memory_waits_for_no_call() {
    let Some(gpus) = gpus(2) else { return };
    while_a_gather_waits(
        &gpus,
        |comm, _| memory(comm),
        |comm, own, all, calls| {
            comm.all_gather(&*own, all).on(calls).unwrap();
        },
        |comm, own, _| {
            drop(own);
            // It is not given to anyone else yet.
            let mut next: DeviceMemory<u32> = comm.alloc_device(LEN).unwrap();
            next.write(&vec![7; LEN]).unwrap();
        },
    );
}

#[test]
fn a_communicator_may_be_dropped_before_the_programs_own_work_has_run() {
    let Some(gpus) = gpus(2) else { return };
    let dropped = Barrier::new(gpus.count);
    gpus.each(&builder(), |comm| {
        let other = comm.split(Some(0), 0).unwrap().unwrap();
        let [stream] = streams(&comm);
        let mut memory = memory(&comm);
        for comm in [&comm, &other] {
            comm.all_reduce_in_place(&mut memory, RedOp::Max)
                .on(&stream)
                .unwrap();
            comm.wait(&stream).unwrap();
        }
        comm.barrier().run().unwrap();
        let call = |memory: &mut DeviceMemory<u32>| {
            let call = other.all_reduce_in_place(memory, RedOp::Max);
            call.on(&stream).unwrap();
        };
        if other.rank() == 0 {
            // Behind the communicator's calls, which have ended, there is work that waits for the
            // other ranks.
            call(&mut memory);
            drop(comm);
            dropped.wait();
        } else {
            dropped.wait();
            comm.check().unwrap();
            call(&mut memory);
        }
        other.wait(&stream).unwrap();
        let mut seen = vec![0; LEN];
        memory.read(&mut seen).unwrap();
        assert_eq!(seen, vec![other.size() as u32; LEN]);
        other.finalize().unwrap();
    });
}

/// A call's kernel that may start before the one ahead of it has ended still waits for what was
/// enqueued in between.
#[test]
fn the_null_stream_waits_for_streams_that_block_it() {
    const LEN: usize = 100;
    let Some(gpus) = gpus(2) else { return };
    if !has(Need::RealGpus) || gpus.count > devices().unwrap().len() {
        return;
    }
    gpus.each(&builder(), |comm| {
        let context = comm.context().unwrap();
        let null = context.default_stream();
        context.bind_to_thread().unwrap();
        let blocking = result::stream::create(StreamKind::Default).unwrap();
        let memory: DeviceMemory<u32> = comm.alloc_device(LEN).unwrap();
        let busy = comm.alloc_device::<u8>(1 << 30).unwrap();
        // SAFETY: `memory` outlives the wait at the end. Its uses are in two streams, of which a
        // blocking one and the null stream wait for each other: that is what is tested.
        let raw: DeviceSlice<u32> =
            unsafe { DeviceSlice::from_raw(memory.address(), LEN, context.ordinal()) };
        for round in 1..=20_u8 {
            // SAFETY: `busy` has `busy.len()` bytes and `memory` has `4 * LEN`, and both outlive
            // the wait at the end. `blocking` is destroyed after it.
            unsafe {
                for _ in 0..10 {
                    result::memset_d8_async(busy.address(), round, busy.len(), blocking).unwrap();
                }
                result::memset_d8_async(memory.address(), round, 4 * LEN, blocking).unwrap();
            }
            comm.all_reduce_in_place(raw, RedOp::Sum).on(&null).unwrap();
            comm.wait(&null).unwrap();
            let mut seen = [0; LEN];
            memory.read(&mut seen).unwrap();
            let own = u32::from_ne_bytes([round; 4]);
            assert_eq!(seen, [own * comm.size() as u32; LEN], "round {round}");
            // Not waited for: the next call's kernel may be behind it.
            comm.all_reduce_in_place(raw, RedOp::Max).on(&null).unwrap();
        }
        comm.wait(&null).unwrap();
        // SAFETY: the null stream waits for all that is in `blocking`, and was waited for. Nothing
        // uses the handle after this.
        unsafe { result::stream::destroy(blocking).unwrap() };
        comm.finalize().unwrap();
    });
}
