//! The cost of worlds of many ranks: time until they are ready, memory, first and later calls,
//! splits, a killed rank.
//!
//! `cargo bench --bench scale [-- N...]`: for each N (16, 64 and 256, if none is given) a table for
//! processes, and one for threads. Without a bench run (`cargo test --benches`) it does nothing.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

use spark_ccl::{Communicator, RedOp, UniqueId};

const ROLE: &str = "SPARK_SCALE_RANK";
const SPLITS: usize = 10;

fn main() {
    if let Ok(role) = std::env::var(ROLE) {
        return rank(&role);
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        return;
    }
    let mut sizes: Vec<usize> = arguments.iter().filter_map(|n| n.parse().ok()).collect();
    if sizes.is_empty() {
        sizes = vec![16, 64, 256];
    }
    println!("| ranks | step | seconds | PSS, MiB | of it shared, MiB |");
    println!("|---|---|---:|---:|---:|");
    for &n in &sizes {
        processes(n);
    }
    for &n in &sizes {
        threads(n);
    }
}

fn processes(n: usize) {
    let start = Instant::now();
    let id = Communicator::builder().unique_id().unwrap();
    let mut ranks: Vec<Process> = (0..n).map(|rank| Process::start(&id, rank, n)).collect();
    for rank in &mut ranks {
        rank.expect("done ready");
    }
    let row = |step: &str, since: Instant, ranks: &[Process]| {
        let seconds = since.elapsed().as_secs_f64();
        let memory = ranks.iter().map(|rank| memory(rank.child.id()));
        let (all, shared) = memory.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        print_row(&format!("{n} processes"), step, seconds, all, shared);
    };
    row("ready", start, &ranks);
    for step in STEPS {
        let start = Instant::now();
        for rank in &mut ranks {
            rank.order(step);
        }
        for rank in &mut ranks {
            rank.expect(&format!("done {step}"));
        }
        row(step, start, &ranks);
    }
    for rank in &mut ranks {
        rank.order("wait");
    }
    let start = Instant::now();
    let mut last = ranks.pop().unwrap();
    last.child.kill().unwrap();
    last.child.wait().unwrap();
    let name = format!("rank {}", n - 1);
    for rank in &mut ranks {
        let line = rank.hear();
        assert!(line.contains(&name), "a killed rank is not named: {line}");
    }
    row("a killed rank is named by all", start, &ranks);
    for mut rank in ranks {
        rank.order("end");
        rank.child.wait().unwrap();
    }
}

fn threads(n: usize) {
    let own = std::process::id();
    let name = format!("{n} threads");
    let mut start = Instant::now();
    let mut row = |step: &str| {
        let (all, shared) = memory(own);
        print_row(&name, step, start.elapsed().as_secs_f64(), all, shared);
        start = Instant::now();
    };
    let comms = Communicator::local(n).unwrap();
    row("ready");
    let mut parts: Vec<Vec<Communicator>> = comms.iter().map(|_| Vec::new()).collect();
    for step in STEPS {
        std::thread::scope(|scope| {
            for (comm, parts) in comms.iter().zip(&mut parts) {
                scope.spawn(|| perform(comm, step, parts));
            }
        });
        row(step);
    }
}

fn print_row(ranks: &str, step: &str, seconds: f64, all: u64, shared: u64) {
    let mib = |kib: u64| kib / 1024;
    println!(
        "| {ranks} | {step} | {seconds:.3} | {} | {} |",
        mib(all),
        mib(shared)
    );
}

/// KiB of a process's proportional set, and of shared memory in it.
fn memory(process: u32) -> (u64, u64) {
    let text = std::fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap_or_default();
    let of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok())
            .unwrap_or(0)
    };
    (of("Pss:"), of("Pss_Shmem:"))
}

struct Process {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Process {
    fn start(id: &UniqueId, rank: usize, size: usize) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .env(ROLE, format!("{id} {rank} {size}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, answers }
    }

    fn order(&mut self, step: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{step}").unwrap();
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn expect(&mut self, answer: &str) {
        assert_eq!(self.hear(), answer);
    }
}

/// The tasks of a rank, in this order.
const STEPS: [&str; 7] = [
    "first all_reduce of 8 B",
    "1000 all_reduce of 8 B",
    "10 splits",
    "all_reduce in each part",
    "all_reduce of 1 MiB",
    "every collective, verified",
    "every collective again",
];

fn rank(role: &str) {
    let words: Vec<&str> = role.split(' ').collect();
    let id: UniqueId = words[0].parse().unwrap();
    let [rank, size] = [1, 2].map(|at| words[at].parse().unwrap());
    let comm = Communicator::connect(&id, rank, size).unwrap();
    answer("done ready");
    let mut parts = Vec::new();
    for order in std::io::stdin().lines().map_while(Result::ok) {
        match order.as_str() {
            "end" => break,
            // For a message that never comes: the others are killed, or wait, too.
            "wait" if rank == size - 1 => std::thread::sleep(std::time::Duration::from_secs(3600)),
            "wait" => {
                let error = comm.barrier().run().unwrap_err();
                answer(&error.to_string().replace('\n', " "));
            }
            step => {
                perform(&comm, step, &mut parts);
                answer(&format!("done {step}"));
            }
        }
    }
}

fn answer(text: &str) {
    println!("{text}");
}

fn perform(comm: &Communicator, step: &str, parts: &mut Vec<Communicator>) {
    match step {
        "first all_reduce of 8 B" => all_reduce(comm, 1),
        "1000 all_reduce of 8 B" => (0..1000).for_each(|_| all_reduce(comm, 1)),
        "10 splits" => {
            let split = |_| comm.split(Some(0), 0).unwrap().unwrap();
            parts.extend((0..SPLITS).map(split));
        }
        "all_reduce in each part" => parts.iter().for_each(|part| all_reduce(part, 1)),
        "all_reduce of 1 MiB" => all_reduce(comm, 1 << 17),
        _ => every_collective(comm),
    }
}

fn all_reduce(comm: &Communicator, len: usize) {
    let mut values = vec![comm.rank() as u64; len];
    comm.all_reduce_in_place(&mut values, RedOp::Sum)
        .run()
        .unwrap();
    let n = comm.size() as u64;
    assert!(values.iter().all(|&value| value == n * (n - 1) / 2));
}

/// With a value for each rank and place.
fn every_collective(comm: &Communicator) {
    let (n, own) = (comm.size(), comm.rank());
    let value = |from: usize, to: usize| (from * n + to) as u32;
    let sum = |to: usize| (0..n).map(|from| value(from, to)).sum::<u32>();
    let row: Vec<u32> = (0..n).map(|to| value(own, to)).collect();
    let column: Vec<u32> = (0..n).map(|from| value(from, own)).collect();
    let (root, is_root) = (n - 1, own == n - 1);
    all_reduce(comm, 3);
    comm.barrier().run().unwrap();
    let mut all = vec![0; n];
    comm.all_to_all(&row, &mut all).run().unwrap();
    assert_eq!(all, column);
    comm.all_gather(&[value(own, 0)], &mut all).run().unwrap();
    assert!(
        all.iter()
            .enumerate()
            .all(|(from, &seen)| seen == value(from, 0))
    );
    let mut one = [0];
    comm.reduce_scatter(&row, &mut one, RedOp::Sum)
        .run()
        .unwrap();
    assert_eq!(one, [sum(own)]);
    let mut copy = row.clone();
    comm.broadcast_in_place(&mut copy, root).run().unwrap();
    assert!((0..n).all(|to| copy[to] == value(root, to)));
    let mut copy = row.clone();
    comm.reduce_in_place(&mut copy, RedOp::Sum, root)
        .run()
        .unwrap();
    assert!(!is_root || (0..n).all(|to| copy[to] == sum(to)));
    let mut all = vec![0; if is_root { n } else { 0 }];
    comm.gather(&[value(own, 7)], &mut all, root).run().unwrap();
    assert!(
        all.iter()
            .enumerate()
            .all(|(from, &seen)| seen == value(from, 7))
    );
    let give = if is_root { &row[..] } else { &[] };
    comm.scatter(give, &mut one, root).run().unwrap();
    assert_eq!(one, [value(root, own)]);
}
