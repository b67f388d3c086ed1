//! The ends of communicators, with operations in progress and with peers that are gone.

use std::env;
use std::io::{Read, Write, stdin};
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use spark_ccl_nccl::{Communicator, Config, DType, Error, RedOp, ShrinkMode, UniqueId};

use crate::cuda::Gpu;
use crate::{machine, nonblocking, start_sum, sum_of_ranks, sum_to, supported, wait};

/// Longer than a sum takes that waits for no peer.
const MOMENT: Duration = Duration::from_millis(200);

/// Starts a sum without the peers.
fn start_alone(gpu: &Gpu, comm: &Communicator) {
    start_sum(gpu, comm).unwrap();
    thread::sleep(MOMENT);
    assert!(!gpu.is_idle(), "the sum ended without the peers");
}

/// Waits until the stream has dropped the stopped operations.
fn wait_for_stream(gpu: &Gpu) {
    while !gpu.is_idle() {
        thread::sleep(Duration::from_micros(50));
    }
}

#[test]
fn finalizing_waits_for_what_was_enqueued() {
    let Some(machine) = machine(1) else { return };
    machine.each_rank(&Config::default(), |gpu, comm| {
        let buffer = gpu.allocate(16 << 20, DType::F32);
        for _ in 0..200 {
            comm.all_reduce(buffer, buffer, RedOp::Max, gpu.stream())
                .unwrap();
        }
        comm.finalize().unwrap();
        assert!(gpu.is_idle());
    });
}

#[test]
fn dropping_does_not_wait_for_peers() {
    let Some(machine) = machine(2) else { return };
    machine.each_rank(&Config::default(), |gpu, comm| {
        start_sum(gpu, &comm).unwrap();
        wait(gpu, &comm);
        if comm.rank().unwrap() == 0 {
            start_alone(gpu, &comm);
        }
        drop(comm);
        wait_for_stream(gpu);
    });
}

#[test]
fn abort_ends_what_waits_for_a_peer() {
    let Some(machine) = machine(2) else { return };
    let aborted = Barrier::new(machine.gpus.len());
    for config in [Config::default(), nonblocking(Config::default().timeout)] {
        machine.each_rank(&config, |gpu, comm| {
            start_sum(gpu, &comm).unwrap();
            wait(gpu, &comm);
            if comm.rank().unwrap() == 0 {
                start_alone(gpu, &comm);
                comm.abort().unwrap();
                wait_for_stream(gpu);
                aborted.wait();
            } else {
                aborted.wait();
                comm.abort().unwrap();
            }
        });
    }
}

#[test]
fn a_first_collective_without_a_peer_times_out() {
    let Some(machine) = machine(2) else { return };
    let ended = Barrier::new(machine.gpus.len());
    machine.each_rank(&nonblocking(Duration::from_secs(2)), |gpu, comm| {
        if comm.rank().unwrap() == 0 {
            // NCCL may connect during the call, or let its kernel wait.
            match start_sum(gpu, &comm) {
                Ok(()) => assert!(!gpu.is_idle()),
                Err(error) => assert!(matches!(error, Error::Timeout { .. }), "{error}"),
            }
            comm.abort().unwrap();
            wait_for_stream(gpu);
        }
        ended.wait();
    });
}

#[test]
fn creation_without_a_peer_times_out() {
    let Some(machine) = machine(1) else { return };
    machine.gpus[0].enter();
    let config = nonblocking(Duration::from_secs(2));
    for rank in 0..2 {
        let id = machine.library.unique_id().unwrap();
        let made = Communicator::init_rank(machine.library, 2, id, rank, &config);
        let error = made.unwrap_err();
        println!("{error}");
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
    }
}

#[test]
fn shrinking_leaves_a_rank_that_is_stuck() {
    let Some(machine) = machine(2) else { return };
    let ended = Barrier::new(machine.gpus.len());
    machine.each_rank(&Config::default(), |gpu, comm| {
        start_sum(gpu, &comm).unwrap();
        wait(gpu, &comm);
        let last = comm.size().unwrap() - 1;
        if comm.rank().unwrap() != last {
            start_alone(gpu, &comm);
            let shrunk = comm.shrink(&[last], ShrinkMode::Abort, None);
            if let Some(shrunk) = supported(shrunk) {
                assert_eq!(shrunk.size().unwrap(), last);
                assert_eq!(sum_of_ranks(gpu, &shrunk), sum_to(last));
                shrunk.finalize().unwrap();
            }
        }
        ended.wait();
        comm.abort().unwrap();
    });
}

#[test]
fn revoking_ends_what_waits_for_a_peer() {
    let Some(machine) = machine(2) else { return };
    machine.each_rank(&Config::default(), |gpu, comm| {
        start_sum(gpu, &comm).unwrap();
        wait(gpu, &comm);
        if comm.rank().unwrap() == 0 {
            start_alone(gpu, &comm);
        }
        if supported(comm.revoke()).is_none() {
            return;
        }
        wait_for_stream(gpu);
        let again = comm.split(Some(0), 0, None).unwrap().unwrap();
        assert_eq!(sum_of_ranks(gpu, &again), sum_to(again.size().unwrap()));
        again.finalize().unwrap();
        comm.finalize().unwrap();
    });
}

/// Set for the process to kill. It reads the id from its standard input.
const PEER: &str = "SPARK_CCL_TEST_PEER";

#[test]
fn abort_ends_what_waits_for_a_killed_process() {
    let Some(machine) = machine(2) else { return };
    let gpu = &machine.gpus[0];
    gpu.enter();
    let id = machine.library.unique_id().unwrap();
    let mut peer = Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", "endings::peer", "--nocapture"])
        .env(PEER, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = peer.stdin.take().unwrap();
    stdin.write_all(id.as_bytes()).unwrap();
    let comm = Communicator::init_rank(machine.library, 2, id, 0, &Config::default()).unwrap();
    start_sum(gpu, &comm).unwrap();
    wait(gpu, &comm);
    peer.kill().unwrap();
    peer.wait().unwrap();
    start_alone(gpu, &comm);
    println!("async error: {:?}", comm.async_error());
    comm.abort().unwrap();
    wait_for_stream(gpu);
}

/// The process that `abort_ends_what_waits_for_a_killed_process` starts and kills.
#[test]
#[ignore = "a child process: abort_ends_what_waits_for_a_killed_process runs it with --ignored --exact"]
fn peer() {
    if env::var_os(PEER).is_none() {
        return;
    }
    let machine = machine(2).unwrap();
    let mut id = [0; 128];
    stdin().read_exact(&mut id).unwrap();
    let (id, config) = (UniqueId::from_bytes(id), Config::default());
    let gpu = &machine.gpus[1];
    gpu.enter();
    let comm = Communicator::init_rank(machine.library, 2, id, 1, &config).unwrap();
    start_sum(gpu, &comm).unwrap();
    wait(gpu, &comm);
    // Waits to be killed, or for the parent to exit.
    stdin().read_to_end(&mut Vec::new()).unwrap();
}
