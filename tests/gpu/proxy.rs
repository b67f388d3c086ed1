//! The thread that passes pieces: when it rests, and how it ends.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use spark_ccl::cuda::DeviceMemory;
use spark_ccl::{Communicator, RedOp};

use super::{builder, gpus, in_another_process, of_fakes, stream_of};

/// For what happens soon, on a machine that has much else to do.
const SOON: Duration = Duration::from_secs(10);
/// The place of the fakes' count of waits for a context.
const SETTLED: i32 = 5;

fn sum(comm: &Communicator) {
    let stream = stream_of(comm);
    let mut memory: DeviceMemory<u32> = comm.alloc_device(1000).unwrap();
    memory.write(&[1; 1000]).unwrap();
    comm.all_reduce_in_place(&mut memory, RedOp::Sum)
        .on(&stream)
        .unwrap();
    comm.wait(&stream).unwrap();
}

/// How often the thread has slept, if it is there.
fn sleeps() -> Option<u64> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let mut all = threads.filter_map(|thread| {
        // Threads end meanwhile.
        std::fs::read_to_string(thread.ok()?.path().join("status")).ok()
    });
    let status = all.find(|status| status.starts_with("Name:\tspark-proxy\n"))?;
    let line = status
        .lines()
        .find(|line| line.starts_with("voluntary_ctxt_switches"));
    line?.split_whitespace().last()?.parse().ok()
}

/// Whether it ends soon.
fn is_over_soon() -> bool {
    let end = Instant::now() + SOON;
    while sleeps().is_some() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    sleeps().is_none()
}

#[test]
fn an_idle_communicator_takes_no_time() {
    in_another_process("proxy::idle");
}

#[test]
#[ignore = "a process that another test starts"]
fn idle() {
    let Some(gpus) = gpus(2) else { return };
    let everyone = Barrier::new(gpus.count);
    gpus.each(&builder(), |comm| {
        sum(&comm);
        everyone.wait();
        let rests = (0..10).any(|_| {
            let before = sleeps().unwrap();
            std::thread::sleep(Duration::from_millis(300));
            sleeps().unwrap() == before
        });
        everyone.wait();
        assert!(rests);
        // It is still there.
        sum(&comm);
        comm.finalize().unwrap();
    });
}

#[test]
fn an_exit_waits_for_the_thread() {
    in_another_process("proxy::exit");
}

#[test]
#[ignore = "a process that another test starts"]
fn exit() {
    extern "C" fn look() {
        if !is_over_soon() {
            // SAFETY: `_exit` takes an integer and never returns, so nothing in this process is
            // used after it.
            unsafe { libc::_exit(3) };
        }
    }
    let Some(gpus) = gpus(2) else { return };
    // SAFETY: `look` has the signature that `atexit` expects, and is in the executable, which is
    // never unloaded. A panic in it ends the process.
    unsafe { libc::atexit(look) };
    gpus.each(&builder(), |comm| {
        sum(&comm);
        std::mem::forget(comm);
    });
    std::process::exit(0);
}

#[test]
fn where_no_thread_can_be_started_nothing_is_left() {
    in_another_process("proxy::end_without_a_thread");
}

/// Threads of root may always be started: this one is nobody's from now on.
fn start_no_more_threads() {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the calls change the limits and the user of this thread, and access no memory but
    // that of `none`.
    unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_NPROC, &raw const none), 0);
        if libc::geteuid() == 0 {
            assert_eq!(libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534), 0);
        }
    }
}

#[test]
#[ignore = "a process that another test starts"]
fn end_without_a_thread() {
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&builder(), |comm| {
        sum(&comm);
        start_no_more_threads();
        assert!(std::thread::Builder::new().spawn(|| {}).is_err());
        comm.finalize().unwrap();
    });
    assert!(is_over_soon());
}

/// A capture may begin between two waits, and the second would fail.
#[test]
fn the_end_waits_for_the_context_once() {
    in_another_process("proxy::end");
}

#[test]
#[ignore = "a process that another test starts"]
fn end() {
    let Some(_gpus) = gpus(1) else { return };
    let Some(count) = of_fakes(c"fake_count") else {
        return;
    };
    let comm = builder().local(1).unwrap().remove(0);
    sum(&comm);
    let before = count(SETTLED);
    comm.finalize().unwrap();
    assert!(is_over_soon());
    assert_eq!(count(SETTLED) - before, 1);
}
