//! What the library does of its own accord: it touches no stream of the program's, gives memory
//! back, and rests.

use std::sync::Barrier;
use std::time::Duration;

use spark_ccl::cuda::cudarc::driver::result::stream::{StreamKind, create, destroy};
use spark_ccl::cuda::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use spark_ccl::cuda::{DeviceMemory, DeviceSlice, Registration};
use spark_ccl::{Communicator, Error, RedOp};

use super::{Count, builder, count, gpus, of_fakes, text};

/// The guard has looked a few times.
const A_WHILE: Duration = Duration::from_millis(300);

fn memory(comm: &Communicator, len: usize) -> DeviceMemory<u8> {
    comm.alloc_device(len).unwrap()
}

#[test]
fn only_its_callers_touch_a_stream() {
    let Some(_gpus) = gpus(1) else { return };
    let Some(strangers) = count(Count::Strangers) else {
        return;
    };
    let comm = builder().local(1).unwrap().remove(0);
    let stream = comm.context().unwrap().new_stream().unwrap();
    let mut memory = memory(&comm, 100);
    for waits in [true, false] {
        for _ in 0..2 {
            comm.all_reduce_in_place(&mut memory, RedOp::Sum)
                .on(&stream)
                .unwrap();
        }
        if waits {
            comm.wait(&stream).unwrap();
        }
        let before = strangers();
        std::thread::sleep(A_WHILE);
        assert_eq!(strangers(), before);
    }
}

#[test]
fn a_stream_may_go_before_the_communicator() {
    let Some(_gpus) = gpus(1) else { return };
    let misuses = count(Count::Misuses);
    let before = misuses.as_ref().map(|misuses| misuses());
    let comm = builder().local(1).unwrap().remove(0);
    let context = comm.context().unwrap();
    let [mut ours, mut theirs] = [memory(&comm, 100), memory(&comm, 100)];
    for _ in 0..3 {
        context.bind_to_thread().unwrap();
        let raw = create(StreamKind::NonBlocking).unwrap();
        // SAFETY: `create` made the stream in this context, which is current. It is destroyed only
        // after `stream`, the wrapper, is dropped.
        let stream = unsafe { context.wrap_borrowed_stream(raw) };
        comm.all_reduce(&ours, &mut theirs, RedOp::Sum)
            .on(&stream)
            .unwrap();
        comm.all_reduce_in_place(&mut ours, RedOp::Sum)
            .on(&stream)
            .unwrap();
        comm.wait(&stream).unwrap();
        drop(stream);
        // SAFETY: `create` made the stream, this destroys it once, and its only wrapper was
        // dropped.
        unsafe { destroy(raw).unwrap() };
        std::thread::sleep(A_WHILE);
    }
    ours.write(&[1; 100]).unwrap();
    drop([ours, theirs]);
    comm.finalize().unwrap();
    assert_eq!(misuses.as_ref().map(|misuses| misuses()), before);
}

#[test]
fn captures_go_on_while_memory_comes_and_goes() {
    let Some(_gpus) = gpus(1) else { return };
    let comm = builder().local(1).unwrap().remove(0);
    let context = comm.context().unwrap();
    let [captures, other] = [(); 2].map(|()| context.new_stream().unwrap());
    let kept = memory(&comm, 100);
    // SAFETY: `kept` outlives the graph and the calls, all of which are in `captures`.
    let raw = unsafe { DeviceSlice::<u8>::from_raw(kept.address(), 100, comm.device().unwrap()) };
    let in_place = |memory: &mut DeviceMemory<u8>| {
        let call = comm.all_reduce_in_place(memory, RedOp::Sum);
        call.on(&other).unwrap();
        comm.wait(&other).unwrap();
    };
    let mut used = memory(&comm, 100);
    in_place(&mut used);
    comm.all_reduce_in_place(raw, RedOp::Sum)
        .on(&captures)
        .unwrap();
    comm.wait(&captures).unwrap();
    captures
        .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL)
        .unwrap();
    comm.all_reduce_in_place(raw, RedOp::Sum)
        .on(&captures)
        .unwrap();
    let said = text(comm.wait(&captures));
    assert!(said.contains("captures a graph"), "{said}");
    drop(used);
    let mut next = memory(&comm, 100);
    in_place(&mut next);
    std::thread::sleep(A_WHILE);
    let graph = captures.end_capture(CUgraphInstantiate_flags(0)).unwrap();
    graph.unwrap().launch().unwrap();
    comm.wait(&captures).unwrap();
}

#[test]
fn registered_memory_is_given_back_when_it_is_dropped() {
    let Some(gpus) = gpus(1) else { return };
    for kind in [Registration::Local, Registration::Symmetric] {
        gpus.each(&builder(), |comm| {
            let stream = comm.context().unwrap().new_stream().unwrap();
            let (free, _) = comm.context().unwrap().mem_get_info().unwrap();
            // Three of these do not fit.
            let len = (free / 5 * 2) >> 21 << 21;
            let rounds = if kind == Registration::Local { 6 } else { 3 };
            for _ in 0..rounds {
                let mut large = memory(&comm, len);
                comm.register_device(&large, kind).unwrap();
                comm.broadcast_in_place(&mut large, 0).on(&stream).unwrap();
                drop(large);
                // All ranks together give windows back, when they register the next.
                let mut small = memory(&comm, 1 << 21);
                comm.wait(&stream).unwrap();
                comm.barrier().run().unwrap();
                comm.register_device(&small, kind).unwrap();
                comm.broadcast_in_place(&mut small, 0).run().unwrap();
            }
            comm.finalize().unwrap();
        });
    }
}

#[test]
fn a_window_that_one_rank_cannot_give_up_leaves_the_others_alike() {
    let Some(gpus) = gpus(2) else { return };
    let (Some(refuse), Some(registrations)) = (
        of_fakes(c"fake_refuse_windows"),
        count(Count::Registrations),
    ) else {
        return;
    };
    let before = registrations();
    refuse(1);
    gpus.each(&builder(), |comm| {
        let register = || {
            let memory = memory(&comm, 1 << 21);
            let kind = Registration::Symmetric;
            comm.register_device(&memory, kind).unwrap();
            memory
        };
        // The first is given up with the second, but on one rank.
        for _ in 0..4 {
            drop(register());
        }
        let last = register();
        comm.barrier().run().unwrap();
        assert_eq!(registrations() - before, 1 + comm.size() as i32);
        comm.barrier().run().unwrap();
        drop(last);
        comm.finalize().unwrap();
    });
}

/// NCCL crashes, now and then, where a buffer is still registered when its communicator ends.
#[test]
fn nothing_is_registered_when_a_communicator_ends() {
    let Some(gpus) = gpus(2) else { return };
    let Some(registrations) = count(Count::Registrations) else {
        return;
    };
    for is_finalized in [true, false] {
        let before = registrations();
        gpus.each(&builder(), |comm| {
            let memory = memory(&comm, 1 << 21);
            for kind in [Registration::Local, Registration::Symmetric] {
                comm.register_device(&memory, kind).unwrap();
            }
            assert!(registrations() > before);
            comm.barrier().run().unwrap();
            if is_finalized {
                comm.finalize().unwrap();
            }
        });
        assert_eq!(registrations(), before);
    }
}

#[test]
fn all_memory_is_freed_at_last() {
    let Some(gpus) = gpus(2) else { return };
    let (Some(blocks), Some(registrations)) = (count(Count::Blocks), count(Count::Registrations))
    else {
        return;
    };
    // Those of other tests may have failed with them.
    let before = (blocks(), registrations());
    let others_may_call = Barrier::new(gpus.count);
    gpus.each(&builder(), |comm| {
        let stream = comm.context().unwrap().new_stream().unwrap();
        let mut used = memory(&comm, 100);
        comm.all_reduce_in_place(&mut used, RedOp::Sum)
            .run()
            .unwrap();
        comm.register_device(&used, Registration::Local).unwrap();
        if comm.rank() > 0 {
            others_may_call.wait();
        }
        comm.all_reduce_in_place(&mut used, RedOp::Sum)
            .on(&stream)
            .unwrap();
        drop(used);
        if comm.rank() == 0 {
            std::thread::sleep(A_WHILE);
            assert!(blocks() > before.0 && registrations() > before.1);
            others_may_call.wait();
        }
        comm.wait(&stream).unwrap();
        // Long before the communicator ends.
        while blocks() > before.0 || registrations() > before.1 {
            std::thread::sleep(Duration::from_millis(10));
        }
        comm.barrier().run().unwrap();
    });
}

#[test]
fn who_waits_rests() {
    const LATE: Duration = Duration::from_secs(1);
    let Some(gpus) = gpus(2) else { return };
    let Some(looks) = count(Count::Looks) else {
        return;
    };
    let others_may_call = Barrier::new(gpus.count);
    gpus.each(&builder(), |comm| {
        let stream = comm.context().unwrap().new_stream().unwrap();
        let mut memory = memory(&comm, 100);
        comm.all_reduce_in_place(&mut memory, RedOp::Sum)
            .run()
            .unwrap();
        if comm.rank() > 0 {
            others_may_call.wait();
            let before = looks();
            std::thread::sleep(LATE);
            let seen = looks() - before;
            // One for each millisecond, and the guards'.
            assert!(seen < 5000, "{seen} looks in {LATE:?}");
        }
        comm.all_reduce_in_place(&mut memory, RedOp::Sum)
            .on(&stream)
            .unwrap();
        if comm.rank() == 0 {
            others_may_call.wait();
        }
        comm.wait(&stream).unwrap();
    });
}

#[test]
fn a_wait_that_fails_is_told_to_all_ranks() {
    let Some(gpus) = gpus(2) else { return };
    let Some(fail_waits) = of_fakes(c"fake_fail_waits") else {
        return;
    };
    let others_have_called = Barrier::new(gpus.count);
    gpus.each(&builder(), |comm| {
        let context = comm.context().unwrap();
        let [first, second] = [(); 2].map(|()| context.new_stream().unwrap());
        let mut memory = memory(&comm, 100);
        comm.all_reduce_in_place(&mut memory, RedOp::Sum)
            .on(&first)
            .unwrap();
        comm.wait(&first).unwrap();
        let mut call = || {
            let call = comm.all_reduce_in_place(&mut memory, RedOp::Sum);
            call.on(&second)
        };
        if comm.rank() > 0 {
            call().unwrap();
            others_have_called.wait();
            let said = text(comm.wait(&second));
            assert!(
                said.contains("rank 0") && said.contains("cuStreamWaitEvent"),
                "{said}"
            );
        } else {
            others_have_called.wait();
            fail_waits(1);
            // The call returns the error; it is not left for the next call of cudarc.
            assert!(matches!(call(), Err(Error::Cuda(_))));
            assert_eq!(context.check_err(), Ok(()));
        }
    });
}
