//! Ranks that die, stop or do something else.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use spark_ccl::cuda::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use spark_ccl::cuda::{DeviceMemory, DeviceSlice};
use spark_ccl::{Communicator, Error, ExitClass, RedOp, UniqueId};
use spark_ccl_testing::{Need, has};

use super::{builder, gpus, in_another_process, of_fakes};
use crate::support::until_failed;

/// Well above what is promised, far below the operation timeout.
const SOON: Duration = Duration::from_secs(20);
const ID: &str = "SPARK_TEST_GPU_ID";

pub(crate) fn memory(comm: &Communicator) -> DeviceMemory<f32> {
    let mut memory = comm.alloc_device(1 << 20).unwrap();
    memory.write(&vec![1.0; 1 << 20]).unwrap();
    memory
}

/// A peer that comes late to each call, but never as late as the limit.
#[test]
fn a_backlog_may_take_longer_than_the_limit_of_a_call() {
    let Some(gpus) = gpus(2) else { return };
    let limit = Duration::from_secs(2);
    for shm in ["1", "0"] {
        let builder = builder().set("SPARK_CCL_SHM", shm).operation_timeout(limit);
        gpus.each(&builder, |comm| {
            let stream = comm.context().unwrap().new_stream().unwrap();
            let mut memory = memory(&comm);
            for _ in 0..12 {
                if comm.rank() == 0 {
                    std::thread::sleep(limit / 4);
                }
                comm.all_reduce_in_place(&mut memory, RedOp::Max)
                    .on(&stream)
                    .unwrap();
            }
            comm.wait(&stream).unwrap();
            comm.finalize().unwrap();
        });
    }
}

#[test]
fn a_rank_that_does_not_take_part_is_timed_out() {
    let Some(gpus) = gpus(2) else { return };
    let builder = builder().operation_timeout(Duration::from_secs(2));
    let start = Instant::now();
    gpus.each(&builder, |comm| {
        let stream = comm.context().unwrap().new_stream().unwrap();
        let mut memory = memory(&comm);
        comm.all_reduce_in_place(&mut memory, RedOp::Sum)
            .on(&stream)
            .unwrap();
        comm.wait(&stream).unwrap();
        if comm.rank() > 0 {
            comm.all_reduce_in_place(&mut memory, RedOp::Sum)
                .on(&stream)
                .unwrap();
        }
        let error = loop {
            if let Err(error) = comm.wait(&stream) {
                break error;
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        assert_eq!(error.exit_class(), ExitClass::Timeout, "{error}");
        assert!(error.to_string().contains("on the device"), "{error}");
        // It stays so, and says so.
        let again = comm
            .all_reduce_in_place(&mut memory, RedOp::Sum)
            .on(&stream);
        assert!(matches!(again, Err(Error::Failed(_))));
    });
    assert!(start.elapsed() < SOON);
}

#[test]
fn who_waits_by_cudarc_is_freed_too() {
    let Some(gpus) = gpus(2) else { return };
    let builder = builder().operation_timeout(Duration::from_secs(2));
    gpus.each(&builder, |comm| {
        let stream = comm.context().unwrap().new_stream().unwrap();
        let mut memory = memory(&comm);
        comm.all_reduce_in_place(&mut memory, RedOp::Sum)
            .run()
            .unwrap();
        if comm.rank() > 0 {
            comm.all_reduce_in_place(&mut memory, RedOp::Sum)
                .on(&stream)
                .unwrap();
            stream.synchronize().unwrap();
            let error = comm.check().unwrap_err();
            assert_eq!(error.exit_class(), ExitClass::Timeout, "{error}");
        } else {
            until_failed(&comm);
        }
    });
}

#[test]
fn a_rank_that_leaves_is_not_waited_for() {
    let Some(gpus) = gpus(2) else { return };
    let start = Instant::now();
    gpus.each(&builder(), |comm| {
        let stream = comm.context().unwrap().new_stream().unwrap();
        let mut memory = memory(&comm);
        comm.all_reduce_in_place(&mut memory, RedOp::Sum)
            .run()
            .unwrap();
        if comm.rank() == 0 {
            return;
        }
        comm.all_reduce_in_place(&mut memory, RedOp::Sum)
            .on(&stream)
            .unwrap();
        let error = comm.wait(&stream).unwrap_err();
        assert!(
            error.to_string().contains("left the communicator"),
            "{error}"
        );
    });
    assert!(start.elapsed() < SOON);
}

#[test]
fn abort_ends_what_runs_on_all_ranks() {
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&builder(), |comm| {
        let stream = comm.context().unwrap().new_stream().unwrap();
        let mut memory = memory(&comm);
        comm.all_reduce_in_place(&mut memory, RedOp::Sum)
            .run()
            .unwrap();
        if comm.rank() == 0 {
            std::thread::sleep(Duration::from_millis(200));
            comm.abort("enough");
        } else {
            comm.all_reduce_in_place(&mut memory, RedOp::Sum)
                .on(&stream)
                .unwrap();
        }
        let error = loop {
            if let Err(error) = comm.wait(&stream) {
                break error;
            }
        };
        assert!(error.to_string().contains("enough"), "{error}");
    });
}

#[test]
fn a_fault_with_a_graph_that_is_still_there_is_returned() {
    let Some(gpus) = gpus(2) else { return };
    let builder = builder().operation_timeout(Duration::from_secs(2));
    let start = Instant::now();
    gpus.each(&builder, |comm| {
        let stream = comm.context().unwrap().new_stream().unwrap();
        let memory = memory(&comm);
        let device = comm.device().unwrap();
        // SAFETY: `memory` outlives the wait for `stream`, in which all calls and the graph are,
        // also after the fault. The graph is dropped before the communicator.
        let raw = unsafe { DeviceSlice::<f32>::from_raw(memory.address(), memory.len(), device) };
        // Not by `run`, which takes the default stream of the GPU: ranks that share a GPU share
        // that, too.
        comm.all_reduce_in_place(raw, RedOp::Sum)
            .on(&stream)
            .unwrap();
        comm.wait(&stream).unwrap();
        stream
            .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)
            .unwrap();
        comm.all_reduce_in_place(raw, RedOp::Sum)
            .on(&stream)
            .unwrap();
        let graph = stream.end_capture(CUgraphInstantiate_flags(0)).unwrap();
        let graph = graph.unwrap();
        if comm.rank() > 0 {
            graph.launch().unwrap();
        }
        let error = loop {
            if let Err(error) = comm.wait(&stream) {
                break error;
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        assert_eq!(error.exit_class(), ExitClass::Timeout, "{error}");
        // It fails where a kernel has, and waits all the same.
        let _ = stream.synchronize();
        drop(graph);
    });
    assert!(start.elapsed() < SOON);
}

#[test]
fn a_gpu_that_fails_is_named_to_all_ranks() {
    let Some(gpus) = gpus(2) else { return };
    let Some(fail) = of_fakes(c"fake_break") else {
        return;
    };
    for how in ["waits", "leaves", "does something else"] {
        let start = Instant::now();
        let others_have_called = Barrier::new(gpus.count);
        gpus.each(&builder(), |comm| {
            let stream = comm.context().unwrap().new_stream().unwrap();
            let mut memory = memory(&comm);
            comm.all_reduce_in_place(&mut memory, RedOp::Sum)
                .run()
                .unwrap();
            if comm.rank() == 1 {
                others_have_called.wait();
                fail(comm.device().unwrap() as i32);
            }
            let call = comm.all_reduce_in_place(&mut memory, RedOp::Sum);
            let called = call.on(&stream);
            if let (1, Err(error)) = (comm.rank(), &called) {
                // On a busy machine, the guard looks at the GPU before the call does.
                assert!(error.to_string().contains("of rank 1: "), "{error}");
                return;
            }
            called.unwrap();
            if comm.rank() != 1 {
                others_have_called.wait();
            }
            if comm.rank() == 1 && how == "leaves" {
                return;
            }
            if comm.rank() == 1 && how == "does something else" {
                until_failed(&comm);
            }
            let error = comm.wait(&stream).unwrap_err();
            if comm.rank() == 1 {
                let said = error.to_string();
                let names = [" on device ", " of rank 1: "].map(|name| said.contains(name));
                assert!(
                    matches!(error, Error::Cuda(_)) && names == [true; 2],
                    "{how}: {said}"
                );
                return;
            }
            let said = error.to_string();
            assert!(
                said.contains("rank 1") && said.contains("cu"),
                "{how}: {said}"
            );
        });
        fail(-1);
        assert!(start.elapsed() < SOON, "{how}");
    }
}

#[test]
fn a_copy_that_fails_leaves_the_programs_memory_alone() {
    let Some(_gpus) = gpus(1) else { return };
    if !has(Need::FakeGpus) {
        return;
    }
    in_another_process("failures::copy_that_fails");
}

/// In another process: the memory is never freed, and keeps the context of its device.
#[test]
#[ignore = "a process that another test starts"]
fn copy_that_fails() {
    let Some(fail) = of_fakes(c"fake_break") else {
        return;
    };
    let comm = builder().local(1).unwrap().remove(0);
    let ones = memory(&comm);
    fail(comm.device().unwrap() as i32);
    let mut seen = vec![7.0; 1 << 20];
    assert!(matches!(ones.read(&mut seen), Err(Error::Cuda(_))));
    fail(-1);
    // Runs whatever is left of the failed copy, too.
    drop(memory(&comm));
    assert!(seen == vec![7.0; 1 << 20]);
    // It may still be in use.
    assert!(matches!(ones.read(&mut seen), Err(Error::Cuda(_))));
}

#[test]
fn copies_of_several_pieces_arrive_while_another_thread_captures() {
    let Some(_gpus) = gpus(1) else { return };
    let comm = builder().local(1).unwrap().remove(0);
    let stream = comm.context().unwrap().new_stream().unwrap();
    let values: Vec<u64> = (0..(9 << 20) / 8 + 5).collect();
    let mut memory: DeviceMemory<u64> = comm.alloc_device(values.len()).unwrap();
    stream
        .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL)
        .unwrap();
    let mut seen = vec![0; values.len()];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            memory.write(&values).unwrap();
            memory.read(&mut seen).unwrap();
        });
    });
    stream.end_capture(CUgraphInstantiate_flags(0)).unwrap();
    assert!(seen == values);
}

/// The rank that is killed: another process of this test.
#[test]
#[ignore = "a process that other tests start"]
fn victim() {
    let Ok(id) = std::env::var(ID) else { return };
    let id: UniqueId = id.parse().unwrap();
    let comm = builder().connect(&id, 1, 2).unwrap();
    let stream = comm.context().unwrap().new_stream().unwrap();
    let mut memory = memory(&comm);
    loop {
        comm.all_reduce_in_place(&mut memory, RedOp::Max)
            .on(&stream)
            .unwrap();
        comm.wait(&stream).unwrap();
        println!("alive");
    }
}

#[test]
fn a_killed_process_is_named() {
    let Some(_gpus) = gpus(2) else { return };
    // Those that are none are one process's.
    if !has(Need::RealGpus) {
        return;
    }
    let builder = builder();
    let id = builder.unique_id().unwrap();
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "failures::victim", "--nocapture"])
        .env(ID, id.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let comm = builder.connect(&id, 0, 2).unwrap();
    let stream = comm.context().unwrap().new_stream().unwrap();
    let mut memory = memory(&comm);
    let mut killed = None;
    let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    for round in 0.. {
        comm.all_reduce_in_place(&mut memory, RedOp::Max)
            .on(&stream)
            .unwrap();
        if round == 10 {
            lines
                .by_ref()
                .find(|line| line.as_ref().unwrap() == "alive")
                .unwrap()
                .unwrap();
            victim.kill().unwrap();
            killed = Some(Instant::now());
        }
        let Err(error) = comm.wait(&stream) else {
            continue;
        };
        let killed = killed.expect("nobody was killed yet");
        println!("after {:?}: {error}", killed.elapsed());
        assert_eq!(error.exit_class(), ExitClass::Remote, "{error}");
        assert!(error.to_string().contains("rank 1"), "{error}");
        assert!(killed.elapsed() < SOON);
        break;
    }
    victim.wait().unwrap();
}

/// Whether a call is timed out that begins with `first`, or a time of its own, and is under way
/// when `then` is set. Rank 0 makes it late, or never.
fn times_out(
    [first, then]: [Duration; 2],
    own: Option<Duration>,
    rank_0_comes: bool,
) -> Option<bool> {
    let gpus = gpus(2)?;
    let outcomes = gpus.each(&builder(), |comm| {
        let stream = comm.context().unwrap().new_stream().unwrap();
        let mut memory = memory(&comm);
        comm.all_reduce_in_place(&mut memory, RedOp::Sum)
            .run()
            .unwrap();
        let mut enqueue = |limit: Option<Duration>| {
            let call = comm.all_reduce_in_place(&mut memory, RedOp::Sum);
            let call = match limit {
                None => call,
                Some(limit) => call.timeout(limit),
            };
            call.on(&stream)
        };
        if comm.rank() == 0 {
            let start = Instant::now();
            while comm.check().is_ok() && (!rank_0_comes || start.elapsed() < 4 * SHORT) {
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = enqueue(Some(LONG));
            return comm.wait(&stream);
        }
        comm.set_timeout(first).unwrap();
        enqueue(own).unwrap();
        comm.set_timeout(then).unwrap();
        comm.wait(&stream)
    });
    let errors: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
    for error in &errors {
        assert_eq!(error.exit_class(), ExitClass::Timeout, "{error}");
    }
    Some(!errors.is_empty())
}

/// More than it takes to see that a call is too late.
const SHORT: Duration = Duration::from_secs(1);
/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(600);

#[test]
fn a_shorter_time_does_not_cut_calls_in_a_stream() {
    assert_ne!(times_out([LONG, SHORT], None, true), Some(true));
    assert_ne!(times_out([SHORT; 2], Some(LONG), true), Some(true));
}

#[test]
fn a_longer_time_does_not_prolong_calls_in_a_stream() {
    assert_ne!(times_out([SHORT, LONG], None, false), Some(false));
    assert_ne!(times_out([LONG; 2], Some(SHORT), false), Some(false));
}
