//! A rank that waits for the slots or packets of another one tells for whom: clients see it long
//! before the call fails, and errors name the rank.

mod processes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use spark_ccl::Communicator;
use spark_ccl::cuda::cudarc::driver::{CudaSlice, CudaStream};
use spark_ccl_status::ras::Wait;

use super::by_host::values;
use super::observed::{Observed, SOON};
use super::stream_of;

/// Elements of a block: by packets, and through slots.
const LENS: [usize; 2] = [1, 20_001];

/// Has a rank's blocks gathered. Nothing is from `alloc_device`, which may give memory on which
/// calls are not staged.
fn gather(comm: &Communicator, stream: &Arc<CudaStream>, len: usize) -> CudaSlice<u64> {
    let own = stream.clone_htod(&values(comm.rank(), len)).unwrap();
    let mut all = stream.alloc_zeros(len * comm.size()).unwrap();
    comm.all_gather(&own, &mut all).on(stream).unwrap();
    all
}

/// For whom rank 0 waits, once that is told.
fn assert_rank_0_waits_for_rank_1(observed: &Observed) {
    let Wait {
        sequence,
        call,
        for_rank,
        ..
    } = wait_of_rank_0(observed);
    assert_eq!((for_rank, sequence), (Some(1), None), "{call}");
    assert!(call.starts_with("all_gather("), "{call}");
    assert!(call.ends_with(" on the device"), "{call}");
}

fn wait_of_rank_0(observed: &Observed) -> Wait {
    let deadline = Instant::now() + SOON;
    loop {
        let report = observed.try_to_ask();
        let all = report.iter().flat_map(|report| &report.communicators);
        let mut ranks = all.flat_map(|comm| &comm.ranks);
        let own = ranks.find(|rank| rank.rank == 0);
        match own.and_then(|own| own.spark_ccl.waits.clone()) {
            Some(wait) => return wait,
            None => assert!(Instant::now() < deadline, "it is not told: {report:?}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_rank_tells_for_whom_it_waits() {
    let Some(observed) = Observed::new() else {
        return;
    };
    for len in LENS {
        let is_told = AtomicBool::new(false);
        observed.gpus.each(&observed.builder(), |comm| {
            let stream = stream_of(&comm);
            let end = Instant::now() + 2 * SOON;
            let is_late = || !is_told.load(Ordering::Acquire) && Instant::now() < end;
            while comm.rank() == 1 && is_late() {
                std::thread::sleep(Duration::from_millis(5));
            }
            let all = gather(&comm, &stream, len);
            if comm.rank() == 0 {
                assert_rank_0_waits_for_rank_1(&observed);
                is_told.store(true, Ordering::Release);
            }
            comm.wait(&stream).unwrap();
            let expected = (0..comm.size()).flat_map(|rank| values(rank, len));
            assert!(stream.clone_dtoh(&all).unwrap().into_iter().eq(expected));
            comm.finalize().unwrap();
        });
    }
}

#[test]
fn a_rank_tells_whose_message_it_waits_for() {
    let Some(observed) = Observed::new() else {
        return;
    };
    let is_told = AtomicBool::new(false);
    observed.gpus.each(&observed.builder(), |comm| {
        let stream = stream_of(&comm);
        let end = Instant::now() + 2 * SOON;
        let is_late = || !is_told.load(Ordering::Acquire) && Instant::now() < end;
        match comm.rank() {
            0 => {
                let mut got: CudaSlice<u64> = stream.alloc_zeros(LENS[1]).unwrap();
                comm.recv(&mut got, 1).on(&stream).unwrap();
                let Wait { call, for_rank, .. } = wait_of_rank_0(&observed);
                assert_eq!(for_rank, Some(1), "{call}");
                assert!(call.starts_with("recv(count 20001, "), "{call}");
                is_told.store(true, Ordering::Release);
                comm.wait(&stream).unwrap();
                assert!(stream.clone_dtoh(&got).unwrap() == values(1, LENS[1]));
            }
            1 => {
                while is_late() {
                    std::thread::sleep(Duration::from_millis(5));
                }
                let own = stream.clone_htod(&values(1, LENS[1])).unwrap();
                comm.send(&own, 0).on(&stream).unwrap();
                comm.wait(&stream).unwrap();
            }
            _ => {}
        }
        comm.finalize().unwrap();
    });
}
