//! The cost of waiting for a late rank: processor time, and the time from its call to the return of
//! the rank that waited.
//!
//! Two processes, since ranks mostly are processes. `cargo bench -p spark-ccl --bench waiting`.

#![allow(missing_docs, clippy::unwrap_used)]

use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use spark_ccl::{Communicator, UniqueId};

/// Tells a process that it is the late rank; its value is the unique id.
const LATE: &str = "SPARK_BENCH_LATE";
const ROUNDS: usize = 101;
const LATER: [Duration; 3] = [
    Duration::from_micros(500),
    Duration::from_millis(5),
    Duration::from_millis(20),
];
const LONG: Duration = Duration::from_secs(5);

fn main() {
    if let Ok(id) = std::env::var(LATE) {
        let id: UniqueId = id.parse().unwrap();
        return measure(&Communicator::connect(&id, 1, 2).unwrap());
    }
    for (name, shm) in [("shm", true), ("tcp", false)] {
        println!("{name}");
        let builder = Communicator::builder().shared_memory(shm);
        let id = builder.unique_id().unwrap();
        let mut late = Command::new(std::env::current_exe().unwrap())
            .env(LATE, id.to_string())
            .env("SPARK_CCL_SHM", shm.to_string())
            .spawn()
            .unwrap();
        measure(&builder.connect(&id, 0, 2).unwrap());
        assert!(late.wait().unwrap().success());
    }
}

fn measure(communicator: &Communicator) {
    for late in LATER {
        let mut micros: Vec<i64> = (0..ROUNDS).map(|_| wake_up(communicator, late)).collect();
        micros.sort_unstable();
        if communicator.rank() == 0 {
            let (median, most) = (micros[ROUNDS / 2], micros[ROUNDS * 9 / 10]);
            println!("  late by {late:?}: back after {median} us (median), {most} us (9 of 10)");
        }
    }
    let before = nanos(ClockId::ProcessCPUTime);
    wake_up(communicator, LONG);
    if communicator.rank() == 0 {
        let micros = (nanos(ClockId::ProcessCPUTime) - before) / 1000;
        println!("  late by {LONG:?}: {micros} us of processor time");
    }
}

/// Microseconds from the late rank's call to the other's return.
fn wake_up(communicator: &Communicator, late: Duration) -> i64 {
    communicator.barrier().run().unwrap();
    if communicator.rank() == 1 {
        thread::sleep(late);
    }
    let called = nanos(ClockId::Monotonic);
    communicator.barrier().run().unwrap();
    let returned = nanos(ClockId::Monotonic);
    let mut times = [0; 4];
    let own = [called, returned];
    communicator.all_gather(&own, &mut times).run().unwrap();
    (times[1] - times[2]) / 1000
}

fn nanos(clock: ClockId) -> i64 {
    let time = clock_gettime(clock);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}
