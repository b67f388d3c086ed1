//! A rank that waits for another one tells for whom: clients see it long before the call fails, and
//! errors name the rank.

mod processes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use spark_ccl::cuda::cudarc::driver::{CudaSlice, CudaStream};
use spark_ccl::{Communicator, RedOp};
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

/// Keeps a rank from its call until another one is seen to wait for it.
fn stay_away_until(is_told: &AtomicBool) {
    let end = Instant::now() + 2 * SOON;
    // Acquire pairs with the release in `tell`: what was asserted before it has passed.
    while !is_told.load(Ordering::Acquire) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Lets the rank that stays away go on.
fn tell(is_told: &AtomicBool) {
    is_told.store(true, Ordering::Release);
}

/// Waits until it is told that rank 0 waits for rank 1 in a call of this name.
fn assert_rank_0_waits_for_rank_1(observed: &Observed, name: &str) {
    let Wait {
        sequence,
        call,
        for_rank,
        ..
    } = wait_of_rank_0(observed);
    assert_eq!((for_rank, sequence), (Some(1), None), "{call}");
    assert!(call.starts_with(&format!("{name}(")), "{call}");
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
            if comm.rank() == 1 {
                stay_away_until(&is_told);
            }
            let all = gather(&comm, &stream, len);
            if comm.rank() == 0 {
                assert_rank_0_waits_for_rank_1(&observed, "all_gather");
                tell(&is_told);
            }
            comm.wait(&stream).unwrap();
            let expected = (0..comm.size()).flat_map(|rank| values(rank, len));
            assert!(stream.clone_dtoh(&all).unwrap().into_iter().eq(expected));
            comm.finalize().unwrap();
        });
    }
}

/// Over links, it goes by pieces.
#[test]
fn a_rank_tells_for_whom_an_all_reduce_waits() {
    let Some(observed) = Observed::new() else {
        return;
    };
    let is_told = AtomicBool::new(false);
    observed.gpus.each(&observed.builder(), |comm| {
        let stream = stream_of(&comm);
        let mut sums = stream.clone_htod(&values(comm.rank(), LENS[1])).unwrap();
        if comm.rank() == 1 {
            stay_away_until(&is_told);
        }
        let all = comm.all_reduce_in_place(&mut sums, RedOp::Sum);
        all.on(&stream).unwrap();
        if comm.rank() == 0 {
            assert_rank_0_waits_for_rank_1(&observed, "all_reduce");
            tell(&is_told);
        }
        comm.wait(&stream).unwrap();
        let of_rank: Vec<_> = (0..comm.size()).map(|rank| values(rank, LENS[1])).collect();
        let expected = (0..LENS[1]).map(|at| {
            of_rank
                .iter()
                .fold(0_u64, |sum, all| sum.wrapping_add(all[at]))
        });
        assert!(expected.eq(stream.clone_dtoh(&sums).unwrap()));
        comm.finalize().unwrap();
    });
}

#[test]
fn a_rank_tells_whose_message_it_waits_for() {
    let Some(observed) = Observed::new() else {
        return;
    };
    let is_told = AtomicBool::new(false);
    observed.gpus.each(&observed.builder(), |comm| {
        let stream = stream_of(&comm);
        match comm.rank() {
            0 => {
                let mut got: CudaSlice<u64> = stream.alloc_zeros(LENS[1]).unwrap();
                comm.recv(&mut got, 1).on(&stream).unwrap();
                let Wait { call, for_rank, .. } = wait_of_rank_0(&observed);
                assert_eq!(for_rank, Some(1), "{call}");
                assert!(call.starts_with("recv(count 20001, "), "{call}");
                tell(&is_told);
                comm.wait(&stream).unwrap();
                assert!(stream.clone_dtoh(&got).unwrap() == values(1, LENS[1]));
            }
            1 => {
                stay_away_until(&is_told);
                let own = stream.clone_htod(&values(1, LENS[1])).unwrap();
                comm.send(&own, 0).on(&stream).unwrap();
                comm.wait(&stream).unwrap();
            }
            _ => {}
        }
        comm.finalize().unwrap();
    });
}
