//! The order of uses where a program has no stream of cudarc's but the default one, or has had
//! another one: cudarc keeps none among its own then.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use spark_ccl::cuda::DeviceMemory;
use spark_ccl::cuda::cudarc::driver::{CudaSlice, CudaStream};
use spark_ccl::{Communicator, RedOp};

use super::{Gpus, builder, gpus, in_another_process};

const LEN: usize = 1 << 16;
/// So long other ranks hold up a stream in which a call would have to wait.
const A_WHILE: Duration = Duration::from_millis(100);

fn values(comm: &Communicator) -> Vec<u32> {
    vec![comm.rank() as u32 + 1; LEN]
}

fn default_stream(comm: &Communicator) -> Arc<CudaStream> {
    comm.context().unwrap().default_stream()
}

/// What all ranks gathered.
fn check(comm: &Communicator, all: &DeviceMemory<u32>) {
    let mut seen = vec![0; LEN * comm.size()];
    all.read(&mut seen).unwrap();
    for (rank, block) in seen.chunks_exact(LEN).enumerate() {
        let expected = rank as u32 + 1;
        assert!(block.iter().all(|&value| value == expected), "rank {rank}");
    }
}

/// The default stream is to fill a buffer with zeros, but is held up meanwhile: a call that is
/// waited for comes after that.
fn a_call_follows<S>(
    gpus: &Gpus,
    is_tracked: bool,
    prepare: impl Fn(&Communicator) -> S + Sync,
    call: impl Fn(&Communicator, &S, &mut CudaSlice<u32>) + Sync,
) {
    let others_may_call = Barrier::new(gpus.count);
    gpus.each(&builder(), |comm| {
        if !is_tracked {
            // SAFETY: what the test does with cudarc's buffers by cudarc is in one stream each.
            unsafe { comm.context().unwrap().disable_event_tracking() };
        }
        // One rank's: its calls wait for nobody.
        let alone = comm.split(Some(comm.rank() as u32), 0).unwrap().unwrap();
        let (prepared, default) = (prepare(&comm), default_stream(&comm));
        let mut own: DeviceMemory<u32> = comm.alloc_device(LEN).unwrap();
        own.write(&values(&comm)).unwrap();
        let mut all = comm.alloc_device(LEN * comm.size()).unwrap();
        comm.all_gather(&own, &mut all).on(&default).unwrap();
        comm.wait(&default).unwrap();
        comm.barrier().run().unwrap();
        std::thread::scope(|scope| {
            if comm.rank() == 0 {
                scope.spawn(|| {
                    std::thread::sleep(A_WHILE);
                    others_may_call.wait();
                });
            } else {
                others_may_call.wait();
            }
            comm.all_gather(&own, &mut all).on(&default).unwrap();
            let mut sum = default.alloc_zeros(LEN).unwrap();
            call(&alone, &prepared, &mut sum);
            comm.wait(&default).unwrap();
            assert_eq!(default.clone_dtoh(&sum).unwrap(), values(&comm));
        });
        check(&comm, &all);
        comm.finalize().unwrap();
    });
}

/// In other processes: tests share cudarc's contexts, which these tell not to track events.
#[test]
fn calls_that_are_waited_for_follow_their_buffers() {
    let Some(_gpus) = gpus(2) else { return };
    in_another_process("one_stream::a_call_that_is_waited_for_follows_what_its_buffers_are_in");
    in_another_process("one_stream::a_call_that_is_waited_for_follows_both_its_buffers_streams");
}

#[test]
#[ignore = "a process that another test starts"]
fn a_call_that_is_waited_for_follows_what_its_buffers_are_in() {
    let Some(gpus) = gpus(2) else { return };
    for is_tracked in [true, false] {
        a_call_follows(
            &gpus,
            is_tracked,
            |comm| {
                let mut memory: DeviceMemory<u32> = comm.alloc_device(LEN).unwrap();
                memory.write(&values(comm)).unwrap();
                memory
            },
            |alone, memory, sum| {
                alone.all_reduce(memory, sum, RedOp::Sum).run().unwrap();
            },
        );
    }
}

#[test]
#[ignore = "a process that another test starts"]
fn a_call_that_is_waited_for_follows_both_its_buffers_streams() {
    let Some(gpus) = gpus(2) else { return };
    a_call_follows(
        &gpus,
        false,
        |comm| {
            let other = comm.context().unwrap().new_stream().unwrap();
            let memory = other.clone_htod(&values(comm)).unwrap();
            other.synchronize().unwrap();
            memory
        },
        |alone, memory, sum| {
            alone.all_reduce(memory, sum, RedOp::Sum).run().unwrap();
        },
    );
}

#[test]
fn a_buffer_outlives_a_call_in_a_stream_that_is_gone() {
    let Some(gpus) = gpus(2) else { return };
    let others_may_call = Barrier::new(gpus.count);
    gpus.each(&builder(), |comm| {
        let default = default_stream(&comm);
        let own = default.clone_htod(&values(&comm)).unwrap();
        let mut all = comm.alloc_device(LEN * comm.size()).unwrap();
        comm.all_gather(&own, &mut all).on(&default).unwrap();
        comm.wait(&default).unwrap();
        comm.barrier().run().unwrap();
        if comm.rank() > 0 {
            others_may_call.wait();
        }
        let calls = comm.context().unwrap().new_stream().unwrap();
        comm.all_gather(&own, &mut all).on(&calls).unwrap();
        drop(calls);
        if comm.rank() == 0 {
            // Freed memory is the next one's.
            drop(own);
            drop(default.clone_htod(&vec![7_u32; LEN]).unwrap());
            others_may_call.wait();
        }
        check(&comm, &all);
        comm.finalize().unwrap();
    });
}
