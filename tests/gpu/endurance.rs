//! What takes minutes: many calls, many communicators, and ranks that are lost in the middle of 1
//! GiB. Run them by `--test kernels endurance -- --ignored --test-threads=1`.

use std::process::Child;
use std::time::{Duration, Instant};

use spark_ccl::cuda::cudarc::driver::{LaunchConfig, PushKernelArg};
use spark_ccl::cuda::cudarc::nvrtc::Ptx;
use spark_ccl::cuda::{DeviceMemory, DeviceSlice};
use spark_ccl::{Communicator, RedOp};
use spark_ccl_testing::{Need, has};

use super::own_kernels::call_in_opposite_orders;
use super::processes::{LONG, compute_with_a_peer, leave_nothing_behind, with_peer};
use super::{builder, gpus, stream_of};

#[test]
#[ignore = "takes minutes on GPUs; docs/tests.md has the command"]
fn a_thousand_communicators_leave_nothing_behind() {
    leave_nothing_behind(1000);
}

/// Each thread spins for some cycles of its multiprocessor.
const HOG: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry hog(.param .u64 cycles)
{
    .reg .u64 %most, %start, %now;
    .reg .pred %goes_on;
    ld.param.u64 %most, [cycles];
    mov.u64 %start, %clock64;
AGAIN:
    mov.u64 %now, %clock64;
    sub.u64 %now, %now, %start;
    setp.lt.u64 %goes_on, %now, %most;
    @%goes_on bra AGAIN;
    ret;
}
";

/// Fills all multiprocessors, several times over, by each call.
fn hog(comm: &Communicator) -> impl FnMut() + use<> {
    let stream = stream_of(comm);
    let module = stream.context().load_module(Ptx::from_src(HOG)).unwrap();
    let kernel = module.load_function("hog").unwrap();
    let full = LaunchConfig {
        grid_dim: (600, 1, 1),
        block_dim: (1024, 1, 1),
        shared_mem_bytes: 0,
    };
    let cycles = 20_000_u64;
    move || {
        // SAFETY: the kernel has one parameter, a number, and uses no memory.
        unsafe {
            stream
                .launch_builder(&kernel)
                .arg(&cycles)
                .launch(full)
                .unwrap()
        };
    }
}

#[test]
#[ignore = "takes minutes on GPUs; docs/tests.md has the command"]
fn opposite_orders_beside_kernels_that_fill_the_gpu() {
    call_in_opposite_orders(10_000, hog);
}

/// How rank 1 is lost while rank 0 waits for it in a call of 1 GiB.
fn lose_rank_1(role: &str, lose: impl Fn(&mut Child), come_back: impl Fn(&mut Child)) {
    const TIMEOUT: Duration = Duration::from_secs(3);
    let Some(_gpus) = gpus(2) else { return };
    if !has(Need::RealGpus) {
        return;
    }
    let (comm, mut peer) = with_peer(&builder().operation_timeout(TIMEOUT), role);
    let stream = stream_of(&comm);
    let memory: DeviceMemory<u32> = comm.alloc_device(LONG).unwrap();
    // SAFETY: `memory` is dropped at the end of this function, after all calls, and all of these
    // are in `stream`.
    let raw: DeviceSlice<u32> =
        unsafe { DeviceSlice::from_raw(memory.address(), LONG, comm.device().unwrap()) };
    let call = || comm.all_reduce_in_place(raw, RedOp::Max).on(&stream);
    if role != "stays away" {
        for _ in 0..3 {
            call().unwrap();
            comm.wait(&stream).unwrap();
        }
    }
    call().unwrap();
    std::thread::sleep(Duration::from_millis(1));
    lose(&mut peer);
    let lost = Instant::now();
    let error = loop {
        if let Err(error) = comm.wait(&stream).and_then(|()| call().map(drop)) {
            break error;
        }
    };
    println!("after {:?}: {error}", lost.elapsed());
    assert!(lost.elapsed() < TIMEOUT + Duration::from_secs(2));
    assert!(error.to_string().contains("rank 1"), "{error}");
    stream.synchronize().unwrap();
    let read = || {
        let mut seen = vec![0; LONG];
        memory.read(&mut seen).unwrap();
        seen
    };
    let left = read();
    come_back(&mut peer);
    std::thread::sleep(Duration::from_secs(10));
    assert!(read() == left, "written after the end");
    // It may have ended by itself.
    let _ = peer.kill();
    peer.wait().unwrap();
    drop((memory, comm));
    compute_with_a_peer();
}

fn signal(child: &Child, signal: i32) {
    // SAFETY: `kill` touches no memory, and the child was not waited for, so the number is still
    // its own.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

#[test]
#[ignore = "takes minutes on GPUs; docs/tests.md has the command"]
fn a_rank_is_killed_in_the_middle_of_a_long_call() {
    lose_rank_1(
        "goes on with long buffers",
        |peer| peer.kill().unwrap(),
        |_| {},
    );
}

#[test]
#[ignore = "takes minutes on GPUs; docs/tests.md has the command"]
fn a_rank_is_stopped_in_the_middle_of_a_long_call_and_comes_back() {
    lose_rank_1(
        "goes on with long buffers",
        |peer| signal(peer, libc::SIGSTOP),
        |peer| signal(peer, libc::SIGCONT),
    );
}

#[test]
#[ignore = "takes minutes on GPUs; docs/tests.md has the command"]
fn a_rank_never_comes_to_a_long_call() {
    lose_rank_1("stays away", |_| {}, |_| {});
}
