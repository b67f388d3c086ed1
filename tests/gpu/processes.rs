//! Ranks that are processes: what they compute together, the death of one of them, and what
//! communicators leave behind.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use spark_ccl::cuda::DeviceMemory;
use spark_ccl::{Builder, Communicator, ExitClass, RedOp, UniqueId};
use spark_ccl_testing::{Need, has, scramble};

use super::{builder, gpus, stream_of};

const ID: &str = "SPARK_TEST_KERNELS_ID";
const ROLE: &str = "SPARK_TEST_KERNELS_ROLE";
/// Well above what is promised, far below the operation timeout.
const SOON: Duration = Duration::from_secs(10);
const LEN: usize = 70_001;
/// What any link takes while its receiver does nothing.
pub(super) const SHORT: usize = 1000;
/// 1 GiB.
pub(super) const LONG: usize = 256 << 20;

pub(super) fn value(rank: usize, place: usize) -> u32 {
    scramble(rank as u64, place as u64) as u32
}

/// One rank's part in sums and blocks of all lengths.
fn compute(comm: &Communicator) {
    let stream = stream_of(comm);
    for len in [1, 33, 1000, LEN] {
        let own: Vec<_> = (0..len).map(|place| value(comm.rank(), place)).collect();
        let mut sum: DeviceMemory<u32> = comm.alloc_device(len).unwrap();
        sum.write(&own).unwrap();
        let mut all: DeviceMemory<u32> = comm.alloc_device(len * comm.size()).unwrap();
        comm.all_gather(&sum, &mut all).on(&stream).unwrap();
        comm.all_reduce_in_place(&mut sum, RedOp::Sum)
            .on(&stream)
            .unwrap();
        comm.wait(&stream).unwrap();
        let mut seen = vec![0; len * comm.size()];
        all.read(&mut seen).unwrap();
        for (rank, block) in seen.chunks_exact(len).enumerate() {
            let expected = (0..len).map(|place| value(rank, place));
            assert!(block.iter().copied().eq(expected), "{len} of rank {rank}");
        }
        let mut seen = vec![0; len];
        sum.read(&mut seen).unwrap();
        let expected = (0..len).map(|place| {
            let values = (0..comm.size()).map(|rank| value(rank, place));
            values.fold(0, u32::wrapping_add)
        });
        assert!(seen.into_iter().eq(expected), "sums of {len}");
    }
}

/// Calls until it is killed.
fn go_on_for_ever(comm: &Communicator, len: usize) {
    let stream = stream_of(comm);
    let mut memory: DeviceMemory<u32> = comm.alloc_device(len).unwrap();
    loop {
        comm.all_reduce_in_place(&mut memory, RedOp::Max)
            .on(&stream)
            .unwrap();
        comm.wait(&stream).unwrap();
        println!("alive");
    }
}

/// Rank 1: another process of this test.
#[test]
#[ignore = "a process that other tests start"]
fn peer() {
    let (Ok(id), Ok(role)) = (std::env::var(ID), std::env::var(ROLE)) else {
        return;
    };
    let id: UniqueId = id.parse().unwrap();
    let comm = builder().connect(&id, 1, 2).unwrap();
    match &*role {
        "computes" => {
            compute(&comm);
            comm.finalize().unwrap();
        }
        "receives late" => {
            comm.barrier().run().unwrap();
            let (stream, mut got) = (stream_of(&comm), comm.alloc_device(SHORT).unwrap());
            comm.recv(&mut got, 0).on(&stream).unwrap();
            comm.wait(&stream).unwrap();
            let mut seen = vec![0; SHORT];
            got.read(&mut seen).unwrap();
            assert!((0..SHORT).map(|place| value(0, place)).eq(seen));
            comm.finalize().unwrap();
        }
        "stays away" => std::thread::park(),
        "goes on with long buffers" => go_on_for_ever(&comm, LONG),
        _ => go_on_for_ever(&comm, LEN),
    }
}

/// This process as rank 0, and another one as rank 1.
pub(super) fn with_peer(builder: &Builder, role: &str) -> (Communicator, Child) {
    let id = builder.unique_id().unwrap();
    let peer = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "processes::peer", "--nocapture"])
        .env(ID, id.to_string())
        .env(ROLE, role)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    (builder.connect(&id, 0, 2).unwrap(), peer)
}

pub(super) fn compute_with_a_peer() {
    let (comm, mut peer) = with_peer(&builder(), "computes");
    compute(&comm);
    comm.finalize().unwrap();
    drop(comm);
    assert!(peer.wait().unwrap().success());
}

#[test]
fn processes_compute_together() {
    let Some(_gpus) = gpus(2) else { return };
    compute_with_a_peer();
}

#[test]
fn a_killed_process_is_named_and_the_survivor_goes_on() {
    let Some(_gpus) = gpus(2) else { return };
    if !has(Need::RealGpus) {
        return;
    }
    let (comm, mut victim) = with_peer(&builder(), "goes on for ever");
    let stream = stream_of(&comm);
    let mut memory: DeviceMemory<u32> = comm.alloc_device(LEN).unwrap();
    let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    let mut killed = None;
    for round in 0.. {
        if round == 10 {
            let is_alive = |line: &Result<String, _>| line.as_ref().unwrap() == "alive";
            lines.by_ref().find(is_alive).unwrap().unwrap();
            victim.kill().unwrap();
            killed = Some(Instant::now());
        }
        let called = comm.all_reduce_in_place(&mut memory, RedOp::Max);
        let Err(error) = called.on(&stream).and_then(|()| comm.wait(&stream)) else {
            continue;
        };
        let killed = killed.expect("nobody was killed yet");
        assert!(killed.elapsed() < SOON, "{:?}", killed.elapsed());
        assert_eq!(error.exit_class(), ExitClass::Remote, "{error}");
        assert!(error.to_string().contains("rank 1"), "{error}");
        break;
    }
    victim.wait().unwrap();
    // Nothing runs any more. The context works, and so do a communicator of the ranks that are
    // left, and a new one.
    stream.synchronize().unwrap();
    let ones = stream.clone_htod(&[1_u32; 10]).unwrap();
    assert_eq!(stream.clone_dtoh(&ones).unwrap(), [1; 10]);
    let alone = comm.shrink(&[]).unwrap();
    assert_eq!(alone.size(), 1);
    compute(&alone);
    drop((alone, comm));
    compute_with_a_peer();
}

/// Descriptors, threads and mappings of this process.
fn possessions() -> [usize; 3] {
    let count = |what: &str| {
        std::fs::read_dir(format!("/proc/self/{what}"))
            .unwrap()
            .count()
    };
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    [count("fd"), count("task"), maps.lines().count()]
}

/// Makes and ends this many communicators.
pub(super) fn leave_nothing_behind(rounds: usize) {
    const FEW: u64 = 64 << 20;
    const FEW_MORE: [usize; 3] = [2, 2, 20];
    let Some(gpus) = gpus(2) else { return };
    let round = || {
        let free = gpus.each(&builder(), |comm| {
            let stream = stream_of(&comm);
            let mut memory: DeviceMemory<u32> = comm.alloc_device(10).unwrap();
            memory.write(&[1; 10]).unwrap();
            comm.all_reduce_in_place(&mut memory, RedOp::Sum)
                .on(&stream)
                .unwrap();
            comm.finalize().unwrap();
            let (free, _) = comm.context().unwrap().mem_get_info().unwrap();
            free as u64
        });
        (possessions(), free[0])
    };
    // The contexts stay, so that they need not be made anew each time.
    let all = 0..spark_ccl::cuda::devices().unwrap().len();
    let _kept: Vec<_> = all
        .map(|device| spark_ccl::cuda::context(device).unwrap())
        .collect();
    // What the first ones make for the whole process stays.
    let last_of = |rounds| (1..rounds).fold(round(), |_, _| round());
    let before = last_of(5);
    let after = last_of(rounds);
    // Threads that end communicators are done with theirs a moment later, on a busy machine.
    let most: [usize; 3] = std::array::from_fn(|place| before.0[place] + FEW_MORE[place]);
    let is_more = |now: [usize; 3]| now.iter().zip(most).any(|(now, most)| *now > most);
    let deadline = Instant::now() + SOON;
    while is_more(possessions()) {
        let now = possessions();
        assert!(Instant::now() < deadline, "{:?}, then {now:?}", before.0);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(
        after.1 + FEW > before.1,
        "{} bytes free, then {}",
        before.1,
        after.1
    );
}

#[test]
fn communicators_leave_nothing_behind() {
    leave_nothing_behind(200);
}
