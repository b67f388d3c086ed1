//! The ranks meet before NCCL connects them for a call; and NCCL may not come back from a call.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use spark_ccl::cuda::DeviceMemory;
use spark_ccl::cuda::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use spark_ccl::{Error, ExitClass, RedOp};

use super::failures::memory;
use super::{builder, gpus, of_fakes, text};
use crate::support::until_failed;

/// Well above what is promised, far below the operation timeout.
const SOON: Duration = Duration::from_secs(20);

#[test]
fn the_first_call_of_a_kind_waits_for_nobody_for_ever() {
    let Some(gpus) = gpus(2) else { return };
    let builder = builder().operation_timeout(Duration::from_secs(2));
    gpus.each(&builder, |comm| {
        let stream = comm.context().unwrap().new_stream().unwrap();
        let mut memory = memory(&comm);
        if comm.rank() == 0 {
            until_failed(&comm);
            return;
        }
        let called = comm
            .all_reduce_in_place(&mut memory, RedOp::Sum)
            .on(&stream);
        let error = called.map(drop).unwrap_err();
        assert_eq!(error.exit_class(), ExitClass::Timeout, "{error}");
        assert!(error.to_string().contains("rank 0"), "{error}");
    });
}

#[test]
fn different_calls_are_told_apart() {
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&builder(), |comm| {
        let stream = comm.context().unwrap().new_stream().unwrap();
        let mut memory = memory(&comm);
        let op = if comm.rank() == 0 {
            RedOp::Max
        } else {
            RedOp::Sum
        };
        let called = comm.all_reduce_in_place(&mut memory, op).on(&stream);
        let said = called.map(drop).unwrap_err().to_string();
        assert!(said.contains("max") && said.contains("sum"), "{said}");
    });
}

#[test]
fn a_capture_that_begins_while_the_ranks_meet_is_left_alone() {
    let Some(gpus) = gpus(2) else { return };
    let has_begun = Barrier::new(gpus.count);
    gpus.each(&builder(), |comm| {
        let stream = comm.context().unwrap().new_stream().unwrap();
        let mut memory: DeviceMemory<u64> = comm.alloc_device(100).unwrap();
        memory.write(&[1; 100]).unwrap();
        let sum = |memory: &mut DeviceMemory<u64>| {
            let call = comm.all_reduce_in_place(memory, RedOp::Sum);
            call.on(&stream)
        };
        if comm.rank() == 0 {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    // The call waits for the others by now, or is refused at once.
                    std::thread::sleep(Duration::from_millis(200));
                    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
                    stream.begin_capture(mode).unwrap();
                    has_begun.wait();
                });
                let said = text(sum(&mut memory));
                assert!(said.contains("capture calls of"), "{said}");
            });
            stream.end_capture(CUgraphInstantiate_flags(0)).unwrap();
        } else {
            has_begun.wait();
        }
        sum(&mut memory).unwrap();
        comm.wait(&stream).unwrap();
        let mut seen = [0; 100];
        memory.read(&mut seen).unwrap();
        assert_eq!(seen, [comm.size() as u64; 100]);
        comm.finalize().unwrap();
    });
}

#[test]
fn who_is_stuck_in_nccl_does_not_hold_up_others_after_a_fault() {
    let Some(gpus) = gpus(2) else { return };
    let Some(block) = of_fakes(c"fake_block") else {
        return;
    };
    let start = Instant::now();
    gpus.each(&builder(), |comm| {
        let stream = comm.context().unwrap().new_stream().unwrap();
        let mut memory = memory(&comm);
        if comm.rank() == 0 {
            until_failed(&comm);
            return;
        }
        let sent = super::failures::memory(&comm);
        std::thread::scope(|scope| {
            block(1);
            let stuck = scope.spawn(|| comm.send(&sent, 0).on(&stream));
            std::thread::sleep(Duration::from_millis(200));
            comm.abort("enough");
            let refused = comm
                .all_reduce_in_place(&mut memory, RedOp::Sum)
                .on(&stream);
            assert!(matches!(refused.map(drop), Err(Error::Failed(_))));
            assert!(matches!(comm.wait(&stream), Err(Error::Failed(_))));
            comm.set_timeout(Duration::from_secs(1)).unwrap();
            block(0);
            // NCCL comes back, to nobody.
            let _ = stuck.join().unwrap();
        });
        assert!(matches!(comm.finalize(), Err(Error::Failed(_))));
    });
    assert!(start.elapsed() < SOON);
}

/// NCCL comes back from it later than from calls without a time of their own.
#[test]
fn a_call_that_may_take_longer_may_also_do_so_inside_nccl() {
    const SHORT: Duration = Duration::from_secs(1);
    let Some(gpus) = gpus(2) else { return };
    let Some(block) = of_fakes(c"fake_block") else {
        return;
    };
    gpus.each(&builder().operation_timeout(SHORT), |comm| {
        let stream = comm.context().unwrap().new_stream().unwrap();
        let mut memory = memory(&comm);
        if comm.rank() == 0 {
            let call = comm.recv(&mut memory, 1).timeout(SOON);
            call.on(&stream).unwrap();
            comm.wait(&stream).unwrap();
        } else {
            block(1);
            std::thread::scope(|scope| {
                let call = comm.send(&memory, 0).timeout(SOON);
                let sent = scope.spawn(|| call.on(&stream));
                std::thread::sleep(3 * SHORT);
                block(0);
                sent.join().unwrap().unwrap();
            });
            comm.wait(&stream).unwrap();
        }
        comm.finalize().unwrap();
    });
}
