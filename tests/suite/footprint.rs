//! The footprint of each of many ranks on one host. With a link for each pair of ranks it would
//! grow with their number. `benches/scale.rs` prints the same for more ranks.

use std::iter::zip;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::param::page_size;
use spark_ccl::{Communicator, Error, Operation};

use crate::collectives_model::Case;
use crate::processes::{Rank, WATCHDOG, alone, assert_all_ok, join};

/// The total of some processes: files, threads, pages of shared memory, and KiB of private memory.
type Footprint = [usize; 4];

/// The most per rank, however many they are, after each step, beyond what its process took before:
/// up to twice the measured value. A rank has at most ten links there; with one to each other rank
/// it would have 63.
type Limits = [(&'static str, Footprint); 4];

const PROCESSES: Limits = [
    ("ready", [40, 3, 1, 500]),
    ("first", [50, 3, 30, 800]),
    ("collectives", [50, 3, 60, 900]),
    ("parts", [160, 3, 500, 1800]),
];
const SOCKETS: Limits = [
    ("ready", [40, 3, 1, 500]),
    ("first", [50, 3, 1, 1000]),
    ("collectives", [50, 3, 1, 5000]),
    ("parts", [160, 3, 1, 24_000]),
];
const THREADS: Limits = [
    ("ready", [3, 1, 1, 200]),
    ("first", [3, 1, 30, 200]),
    ("collectives", [3, 1, 60, 250]),
    ("parts", [24, 1, 500, 1300]),
];

#[test]
fn many_processes_take_little_each() {
    let _alone = alone();
    for n in [8, 16, 32, 64] {
        processes_grow(n, "1", &PROCESSES);
    }
}

#[test]
fn many_processes_with_sockets_take_little_each() {
    let _alone = alone();
    for n in [8, 16, 32] {
        processes_grow(n, "0", &SOCKETS);
    }
}

#[test]
fn many_threads_take_little_each() {
    let _alone = alone();
    for n in [8, 16, 32, 64] {
        let mut process = [started("1")];
        let before = footprint(&process);
        assert_eq!(process[0].ask(&format!("ranks {n}")), "ok");
        grow(&mut process, n, before, &THREADS);
    }
}

fn processes_grow(n: usize, shm: &str, limits: &Limits) {
    let mut ranks: Vec<Rank> = (0..n).map(|_| started(shm)).collect();
    let before = footprint(&ranks);
    join(&mut ranks);
    grow(&mut ranks, n, before, limits);
}

fn started(shm: &str) -> Rank {
    let mut rank = Rank::start(&[("SPARK_CCL_SHM", shm)]);
    // The first answer takes memory, too.
    assert_eq!(rank.ask("sleep 0"), "ok");
    rank
}

/// Has `n` ranks in these processes do each step.
fn grow(processes: &mut [Rank], n: usize, before: Footprint, limits: &Limits) {
    for &(step, limit) in limits {
        assert_all_ok(processes, &format!("perform {step}"));
        let now = footprint(processes);
        let is_within =
            zip(now, zip(before, limit)).all(|(now, (old, most))| now <= old + most * n);
        assert!(
            is_within,
            "{n} ranks, {step}: {now:?} is more than {before:?} and {limit:?} for each"
        );
        if step == "first" {
            assert_all_ok(processes, "perform more");
            assert_comes_down(processes, now);
        }
    }
}

/// An ended thread takes a moment to go.
fn assert_comes_down(processes: &[Rank], to: Footprint) {
    let deadline = Instant::now() + WATCHDOG;
    loop {
        let now = footprint(processes);
        // Private memory varies for other reasons, too.
        if zip(now, to).take(3).all(|(now, most)| now <= most) {
            return;
        }
        assert!(Instant::now() < deadline, "{now:?}, which was {to:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn footprint(processes: &[Rank]) -> Footprint {
    let sum = |of: &dyn Fn(u32) -> usize| processes.iter().map(|rank| of(rank.pid())).sum();
    [
        sum(&|pid| entries(pid, "fd")),
        sum(&|pid| entries(pid, "task")),
        sum(&|pid| kib(pid, "Pss_Shmem:") * 1024 / page_size()),
        sum(&|pid| kib(pid, "Pss_Anon:")),
    ]
}

fn entries(pid: u32, what: &str) -> usize {
    let entries = std::fs::read_dir(format!("/proc/{pid}/{what}")).unwrap();
    entries.count()
}

fn kib(pid: u32, what: &str) -> usize {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(what));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.unwrap().parse().unwrap()
}

/// Ranks of this process, with the parts that they have split off.
#[derive(Default)]
pub(crate) struct Ranks(Vec<(Arc<Communicator>, Vec<Communicator>)>);

impl Ranks {
    pub(crate) fn local(size: usize) -> Result<Self, Error> {
        let comms = Communicator::local(size)?.into_iter();
        Ok(Self(comms.map(|it| (Arc::new(it), Vec::new())).collect()))
    }

    pub(crate) fn of(comm: Arc<Communicator>) -> Self {
        Self(vec![(comm, Vec::new())])
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Has all ranks do the step at once.
    pub(crate) fn perform(&mut self, step: &str) -> Result<(), Error> {
        std::thread::scope(|scope| {
            let perform = |(comm, parts)| scope.spawn(move || perform(comm, parts, step));
            let ranks = self.0.iter_mut().map(|(comm, parts)| (&**comm, parts));
            let threads: Vec<_> = ranks.map(perform).collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().unwrap())
        })
    }
}

fn perform(comm: &Communicator, parts: &mut Vec<Communicator>, step: &str) -> Result<(), Error> {
    let eight_bytes = |comm: &_| Case::new(Operation::AllReduce, 1).attempt::<f64>(comm);
    match step {
        "ready" => Ok(()),
        "first" => eight_bytes(comm),
        "more" => (0..100).try_for_each(|_| eight_bytes(comm)),
        "collectives" => [
            Operation::AllReduce,
            Operation::Broadcast,
            Operation::Reduce,
        ]
        .into_iter()
        .try_for_each(|operation| Case::new(operation, 1000).attempt::<i32>(comm)),
        "parts" => (0..10).try_for_each(|_| {
            parts.extend(comm.split(Some(0), 0)?);
            eight_bytes(parts.last().unwrap())
        }),
        _ => panic!("{step:?} is no step"),
    }
}
