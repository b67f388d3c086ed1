//! The cost of an operation besides moving its bytes: schedules, plans, messages, bootstrap.
//!
//! Two threads are the ranks; on a machine with fewer than two idle cores the round trips measure
//! the scheduler of the operating system.

#![allow(missing_docs, clippy::unwrap_used)]

use std::hint::black_box;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{
    BatchSize, BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main,
};
use spark_ccl::{Communicator, Operation, RedOp};
use spark_ccl_bootstrap::{Options, Session, UniqueId};
use spark_ccl_sched::{Algorithm, Schedule, Shape, Steps, schedule};
use spark_ccl_transport::{Geometry, LinkRx, LinkTx, shm};

/// Walks every step of a rank's schedule, as the engine does.
fn steps(c: &mut Criterion) {
    let mut group = group(c, "steps");
    for (algorithm, size) in [
        (Algorithm::Ring, 2),
        (Algorithm::Ring, 64),
        (Algorithm::RecursiveDoubling, 64),
        (Algorithm::DoubleTree, 64),
        (Algorithm::OneSided, 2),
    ] {
        let schedule = all_reduce(algorithm, size);
        group.throughput(Throughput::Elements(walk(&schedule)));
        group.bench_function(format!("{algorithm}/{size} ranks"), |b| {
            b.iter(|| walk(black_box(&schedule)));
        });
    }
}

/// Making a schedule, which happens once per kind of call.
fn schedules(c: &mut Criterion) {
    let mut group = group(c, "schedule");
    for algorithm in [Algorithm::Direct, Algorithm::Ring, Algorithm::DoubleTree] {
        group.bench_function(format!("{algorithm}"), |b| {
            b.iter(|| all_reduce(black_box(algorithm), 8));
        });
    }
}

fn all_reduce(algorithm: Algorithm, size: u32) -> Schedule {
    let shape = Shape {
        rank: 0,
        size,
        count: 1 << 20,
        root: 0,
        chunk: 64 << 10,
        hosts: None,
    };
    schedule(Operation::AllReduce, algorithm, false, shape).unwrap()
}

/// Computes all steps; returns their number.
fn walk(schedule: &Schedule) -> u64 {
    let mut steps = 0;
    for channel in 0..schedule.channels() {
        for step in schedule.walk(channel) {
            black_box(step);
            steps += 1;
        }
    }
    steps
}

/// Calls of a lone rank: checks, signature, plan, and a copy of one element.
fn plans(c: &mut Criterion) {
    let mut group = group(c, "plan");
    let comm = Communicator::local(1).unwrap().remove(0);
    let send = [1.0_f32; 2];
    let mut recv = [0.0; 2];
    group.bench_function("the same call again", |b| {
        b.iter(|| {
            comm.all_reduce(&send[..1], &mut recv[..1], RedOp::Sum)
                .run()
                .unwrap();
        });
    });
    group.throughput(Throughput::Elements(2));
    group.bench_function("two calls in turn", |b| {
        b.iter(|| {
            for count in [1, 2] {
                comm.all_reduce(&send[..count], &mut recv[..count], RedOp::Sum)
                    .run()
                    .unwrap();
            }
        });
    });
}

/// A round trip over a link in shared memory, without an engine.
fn link_round_trips(c: &mut Criterion) {
    let mut group = group(c, "shm round trip");
    for bytes in [8, 4 << 10, 64 << 10] {
        let ((mut tx, mut rx), (mut echo_tx, mut echo_rx)) = shm::pair(Geometry {
            slot_bytes: 64 << 10,
            slots: 8,
        })
        .unwrap();
        let payload = vec![1; bytes];
        let echo = payload.clone();
        let mut peer = Peer::start(move || {
            receive(&mut echo_rx);
            send(&mut echo_tx, &echo);
        });
        group.bench_function(BenchmarkId::from_parameter(bytes), |b| {
            b.iter_custom(|times| {
                peer.time(times, || {
                    send(&mut tx, &payload);
                    receive(&mut rx);
                })
            });
        });
    }
}

fn send(tx: &mut shm::Tx, payload: &[u8]) {
    let mut spins = 0;
    loop {
        if let Some(slot) = tx.reserve(payload.len()).unwrap() {
            slot.copy_from_slice(payload);
            break;
        }
        relax(&mut spins);
    }
    tx.commit(payload.len(), 0).unwrap();
}

fn receive(rx: &mut shm::Rx) {
    let mut spins = 0;
    loop {
        if let Some(arrival) = rx.peek().unwrap() {
            black_box(arrival.payload);
            break;
        }
        relax(&mut spins);
    }
    rx.release();
}

/// Lets the peer run if it shares this core.
fn relax(spins: &mut u32) {
    *spins += 1;
    if spins.is_multiple_of(1024) {
        thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

/// Small calls of two ranks that are threads.
fn small_calls(c: &mut Criterion) {
    let mut group = group(c, "all_reduce of 2 ranks");
    for bytes in [8, 4 << 10, 64 << 10] {
        let count = bytes / size_of::<f32>();
        let mut ranks = Communicator::local(2).unwrap();
        let (other, comm) = (ranks.pop().unwrap(), ranks.pop().unwrap());
        let mut peer = Peer::start(sums(other, count));
        let mut own = sums(comm, count);
        group.bench_function(BenchmarkId::from_parameter(bytes), |b| {
            b.iter_custom(|times| peer.time(times, &mut own));
        });
    }
}

fn sums(comm: Communicator, count: usize) -> impl FnMut() {
    let send = vec![1.0_f32; count];
    let mut recv = vec![0.0; count];
    move || {
        comm.all_reduce(&send, &mut recv, RedOp::Sum).run().unwrap();
    }
}

/// A thread that does its part as often as requested.
struct Peer {
    orders: mpsc::Sender<u64>,
}

impl Peer {
    fn start(mut part: impl FnMut() + Send + 'static) -> Self {
        let (orders, inbox) = mpsc::channel();
        thread::spawn(move || {
            for times in inbox {
                (0..times).for_each(|_| part());
            }
        });
        Self { orders }
    }

    fn time(&mut self, times: u64, mut part: impl FnMut()) -> Duration {
        // The first is not timed: it waits until the peer has woken up.
        self.orders.send(times + 1).unwrap();
        part();
        let start = Instant::now();
        (0..times).for_each(|_| part());
        start.elapsed()
    }
}

/// From nothing to connected ranks, and back. The ranks are threads.
fn bootstrap(c: &mut Criterion) {
    let mut group = group(c, "bootstrap");
    group.sample_size(10);
    for ranks in [2, 4, 8] {
        group.bench_function(BenchmarkId::new("Communicator::local", ranks), |b| {
            b.iter(|| Communicator::local(ranks).unwrap());
        });
        group.bench_function(BenchmarkId::new("Session::join", ranks), |b| {
            let options = Options::default();
            b.iter_batched(
                || UniqueId::create(&options).unwrap(),
                |id| join_all(&id, ranks, &options),
                BatchSize::PerIteration,
            );
        });
    }
}

fn join_all(id: &UniqueId, ranks: usize, options: &Options) -> Vec<Session> {
    let size = ranks as u32;
    thread::scope(|scope| {
        let join = |rank| scope.spawn(move || Session::join(id, rank, size, options).unwrap());
        let threads: Vec<_> = (0..size).map(join).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn group<'a>(c: &'a mut Criterion, name: &str) -> BenchmarkGroup<'a, WallTime> {
    let mut group = c.benchmark_group(name);
    group
        .sample_size(20)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(400));
    group
}

criterion_group!(
    benches,
    steps,
    schedules,
    plans,
    link_round_trips,
    small_calls,
    bootstrap
);
criterion_main!(benches);
