//! Plays one case from start to end.

use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rustix::process::Signal;
use spark_ccl_testing::{Need, has};

use super::case::{Case, Fault, Moment, Net};
use super::garbage::{Manner, Storm};
use super::traces::Traces;
use super::{Failure, Wrong, judge};
use crate::hosts::beside;
use crate::processes::{Rank, Silence, WATCHDOG};
use crate::rdma::{self, Impaired};
use crate::switch::{cut, lose, mend, stop_losing, switched_hosts};

/// The timeout of operations that wait for a stopped rank, in seconds: longer than a busy machine
/// takes for any of them.
pub(super) const STOP_TIMEOUT: f64 = 5.0;
/// The last orders of all ranks: a call that needs all of them, and a program's end.
const END: [&str; 2] = ["call f32 all_reduce sum 1000", "finalize"];

pub(super) fn play(case: &Case) -> Vec<Failure> {
    let mut job = Job::start(case);
    let mut failures = match job.go() {
        Ok(()) => judge::failures(case, &job),
        Err(failure) => vec![failure],
    };
    failures.extend(job.end());
    failures
}

/// The ranks, their orders, and their answers.
pub(super) struct Job<'a> {
    case: &'a Case,
    traces: Traces,
    ranks: Vec<Rank>,
    /// Keep alive hosts whose ranks have ended.
    networks: Vec<File>,
    orders: Vec<Vec<String>>,
    pub(super) answers: Vec<Vec<String>>,
}

/// How many packets were lost on purpose. Relaxed: a count for the summary.
pub(super) static LOST: AtomicU64 = AtomicU64::new(0);

/// The end of a fault.
enum Remedy {
    None,
    Wake,
    Mend(Vec<[String; 2]>),
    /// Ends when dropped, whatever becomes of the case.
    Restore(Vec<Impaired>),
    /// On all hosts.
    StopLosing,
    Calm(Storm),
}

impl<'a> Job<'a> {
    fn start(case: &'a Case) -> Self {
        let traces = Traces::new(case.seed);
        let ranks = started(case, &traces);
        Self {
            case,
            traces,
            networks: ranks.iter().map(network_of).collect(),
            ranks,
            orders: vec![Vec::new(); case.size],
            answers: vec![Vec::new(); case.size],
        }
    }

    fn go(&mut self) -> Result<(), Failure> {
        let is_early = self.case.moment == Moment::BeforeTheFirstCall;
        let are_strangers = matches!(self.case.fault, Fault::Garbage | Fault::Silence);
        let early = (is_early && are_strangers).then(|| self.inflict());
        self.join(early.as_ref())?;
        if self.case.moment == Moment::Idle {
            self.order_all(&format!("call {}", self.case.call));
            self.settle(0..self.case.size)?;
        }
        self.order_what_the_fault_needs()?;
        self.traces.take(self.pids());
        let remedy = if self.case.moment == Moment::InALoop {
            self.order_calls();
            for rank in 0..self.case.size {
                self.hear(rank)?;
            }
            std::thread::sleep(self.case.delay);
            self.inflict()
        } else {
            let remedy = early.unwrap_or_else(|| self.inflict());
            std::thread::sleep(self.case.delay);
            self.order_calls();
            remedy
        };
        for order in END {
            self.order_all(order);
        }
        self.outlast(remedy)
    }

    /// Joins the ranks. Strangers that come early are there before the first rank joins.
    fn join(&mut self, early: Option<&Remedy>) -> Result<(), Failure> {
        self.order(0, "id");
        self.settle(0..1)?;
        if let Some(Remedy::Calm(storm)) = early {
            storm.until_met();
        }
        let id = self.answers[0].remove(0);
        self.orders[0].clear();
        let size = self.case.size;
        for rank in 0..size {
            self.order(rank, &format!("join {id} {rank} {size}"));
        }
        self.settle(0..size)?;
        // Only strangers have come so far, and nobody has to notice those.
        let refused = |rank: &usize| self.answers[*rank] != ["ok"];
        let words = |rank| format!("rank {rank}, told to join: {:?}", self.answers[rank]);
        let failure = (0..size).find(refused).map(words);
        failure.map_or(Ok(()), |words| Err((Wrong::Unnamed, words)))
    }

    /// Orders a child, a blocked log, or memory that comes and goes, where the fault needs it.
    fn order_what_the_fault_needs(&mut self) -> Result<(), Failure> {
        let victim = self.case.victim;
        match self.case.fault {
            Fault::BlockedLog => {
                self.order_all("block-log");
                return self.settle(0..self.case.size);
            }
            Fault::Frees => {
                self.order_all("drop-memory");
                return self.settle(0..self.case.size);
            }
            Fault::KillParent => self.order(victim, "fork sleep"),
            Fault::Fork(what) if self.case.moment != Moment::InALoop => {
                self.order(victim, &format!("fork {what}"));
            }
            _ => return Ok(()),
        }
        self.settle(victim..victim + 1)
    }

    /// Orders the calls during which the fault happens; for a mismatch, the victim makes another
    /// one. All rounds may take minutes if packets are lost or others use the cores: that is no
    /// hang.
    fn order_calls(&mut self) {
        let Case { call, rounds, .. } = self.case;
        let is_loop = self.case.moment == Moment::InALoop;
        for rank in 0..self.case.size {
            let own = (rank == self.case.victim).then_some(&self.case.fault);
            let (first, rest) = (self.case.victim_rounds, rounds - self.case.victim_rounds);
            match own {
                Some(Fault::Mismatch(other)) => {
                    if is_loop {
                        self.order(rank, &format!("rounds-that-tell {first} {call}"));
                    }
                    self.order(rank, &format!("call {other}"));
                }
                Some(Fault::Fork(what)) if is_loop => {
                    self.order(rank, &format!("rounds-that-tell {first} {call}"));
                    self.order(rank, &format!("fork {what}"));
                    self.order(rank, &format!("rounds-that-tell {rest} {call}"));
                }
                _ if is_loop => self.order(rank, &format!("rounds-that-tell {rounds} {call}")),
                _ => self.order(rank, &format!("call {call}")),
            }
        }
    }

    fn inflict(&mut self) -> Remedy {
        let victim = &mut self.ranks[self.case.victim];
        match self.case.fault {
            Fault::Kill | Fault::KillParent | Fault::BlockedLog | Fault::Frees => victim.kill(),
            Fault::Stop | Fault::Pause => {
                victim.stop();
                return Remedy::Wake;
            }
            Fault::Mute([one, other]) => return Remedy::Mend(vec![self.cut(one, other)]),
            Fault::Cut([one, other]) | Fault::Gap([one, other]) => {
                return Remedy::Mend(vec![self.cut(one, other), self.cut(other, one)]);
            }
            Fault::Loss(percent) if self.case.net == Net::Rdma => {
                return Remedy::Restore(rdma::impair_all(percent));
            }
            Fault::Rail => return Remedy::Restore(rdma::cut_first()),
            Fault::Loss(percent) => {
                (0..self.case.hosts).for_each(|host| lose(self.on_host(host), percent));
                return Remedy::StopLosing;
            }
            Fault::Garbage => return self.storm(Manner::Talks),
            Fault::Silence => return self.storm(Manner::IsSilent),
            Fault::None | Fault::Mismatch(_) | Fault::Fork(_) => {}
        }
        Remedy::None
    }

    fn storm(&self, manner: Manner) -> Remedy {
        Remedy::Calm(Storm::start(&self.pids(), self.case.seed, manner))
    }

    /// Cuts the network from one host to another.
    fn cut(&self, from: usize, to: usize) -> [String; 2] {
        cut(self.on_host(from), to)
    }

    /// The first rank on a host.
    fn on_host(&self, host: usize) -> &Rank {
        let is_there = |&rank: &usize| self.case.host_of(rank) == host;
        &self.ranks[(0..self.case.size).find(is_there).unwrap()]
    }

    /// Collects all answers, and ends the fault when it is time.
    fn outlast(&mut self, remedy: Remedy) -> Result<(), Failure> {
        let Case { victim, size, .. } = *self.case;
        match self.case.fault {
            Fault::Pause | Fault::Gap(_) => std::thread::sleep(self.case.pause),
            Fault::Stop => {
                self.settle(0..victim)?;
                self.settle(victim + 1..size)?;
            }
            Fault::Garbage
            | Fault::Silence
            | Fault::Loss(_)
            | Fault::Rail
            | Fault::Cut(_)
            | Fault::Mute(_) => self.settle(0..size)?,
            _ => {}
        }
        match remedy {
            Remedy::Wake => self.ranks[victim].signal(Signal::CONT),
            Remedy::Mend(ways) => ways.iter().for_each(mend),
            Remedy::Restore(impaired) => {
                LOST.fetch_add(impaired.iter().map(Impaired::lost).sum(), Ordering::Relaxed);
            }
            Remedy::StopLosing => {
                let hosts = (0..self.case.hosts).map(|host| self.on_host(host));
                LOST.fetch_add(hosts.map(stop_losing).sum(), Ordering::Relaxed);
            }
            Remedy::Calm(storm) => drop(storm),
            Remedy::None => {}
        }
        self.settle(0..size)
    }

    fn order_all(&mut self, order: &str) {
        for rank in 0..self.case.size {
            self.order(rank, order);
        }
    }

    fn order(&mut self, rank: usize, order: &str) {
        if !self.ranks[rank].was_killed() {
            self.orders[rank].push(order.to_owned());
            self.ranks[rank].order(order);
        }
    }

    /// Collects all outstanding answers of these ranks.
    fn settle(&mut self, ranks: std::ops::Range<usize>) -> Result<(), Failure> {
        for rank in ranks {
            while !self.ranks[rank].was_killed()
                && self.answers[rank].len() < self.orders[rank].len()
            {
                self.hear(rank)?;
            }
        }
        Ok(())
    }

    /// Takes the next message: an answer, or that a loop runs.
    fn hear(&mut self, rank: usize) -> Result<(), Failure> {
        match self.ranks[rank].answer_before(Instant::now() + WATCHDOG) {
            Ok(answer) if answer == "running" => {}
            Ok(answer) => self.answers[rank].push(answer),
            Err(silence) => {
                let order = &self.orders[rank][self.answers[rank].len()];
                let (wrong, words) = match silence {
                    Silence::Waits => (Wrong::Hang, "does not answer"),
                    // Its last output is above.
                    Silence::Ended => (Wrong::Result, "has ended"),
                };
                return Err((wrong, format!("rank {rank}, told to {order:?}, {words}")));
            }
        }
        Ok(())
    }

    fn pids(&self) -> Vec<u32> {
        self.ranks.iter().map(Rank::pid).collect()
    }

    /// The number, process and host of each rank.
    pub(super) fn members(&self) -> impl Iterator<Item = (usize, u32, usize)> {
        let host = |rank| self.case.host_of(rank);
        self.pids()
            .into_iter()
            .enumerate()
            .map(move |(rank, pid)| (rank, pid, host(rank)))
    }

    /// The orders of a rank, each with its answer.
    pub(super) fn said(&self, rank: usize) -> impl Iterator<Item = (&String, &String)> {
        self.orders[rank].iter().zip(&self.answers[rank])
    }

    /// Whether the rank was not killed.
    pub(super) fn survived(&self, rank: usize) -> bool {
        !self.ranks[rank].was_killed()
    }

    /// Lets all ranks end by themselves: they get no more orders.
    fn end(mut self) -> Option<Failure> {
        self.ranks.iter_mut().for_each(Rank::dismiss);
        self.networks.clear();
        let left = self.traces.left()?;
        Some((Wrong::Leftover, left))
    }
}

fn network_of(rank: &Rank) -> File {
    File::open(format!("/proc/{}/ns/net", rank.pid())).unwrap()
}

fn started(case: &Case, traces: &Traces) -> Vec<Rank> {
    let timeout = if case.fault == Fault::Stop {
        STOP_TIMEOUT
    } else {
        30.0
    };
    let timeout = &*timeout.to_string();
    let shm = if case.net == Net::Loopback { "0" } else { "1" };
    // Gives a blocked log something to write.
    let log = if case.fault == Fault::BlockedLog {
        "info"
    } else {
        "off"
    };
    let mut env = vec![
        traces.mark(),
        ("SPARK_CCL_LOG", log),
        ("SPARK_CCL_TIMEOUT", timeout),
        // Longer than gaps.
        ("SPARK_CCL_LOST_AFTER", "3"),
        ("SPARK_CCL_CUT_AFTER", "4"),
        ("SPARK_CCL_SHM", shm),
    ];
    let gpus = fake_gpus();
    if case.fault == Fault::Frees {
        env.extend(gpus.iter().map(|(name, value)| (*name, &**value)));
    }
    match case.net {
        Net::Shm | Net::Loopback => (0..case.size).map(|_| Rank::start(&env)).collect(),
        Net::Rdma => {
            env.retain(|(name, _)| *name != "SPARK_CCL_SHM");
            rdma::started(case.size, 2, &env)
        }
        Net::Hosts => {
            let hosts = switched_hosts(case.hosts, &env);
            let pids: Vec<u32> = hosts.iter().map(Rank::pid).collect();
            let mut hosts = hosts.into_iter();
            let start = |rank: usize| {
                let host = case.host_of(rank);
                let is_first = rank == 0 || case.host_of(rank - 1) != host;
                let first = is_first.then(|| hosts.next()).flatten();
                first.unwrap_or_else(|| beside(pids[host], &env))
            };
            (0..case.size).map(start).collect()
        }
    }
}

/// The environment for a fake GPU, with the host's memory, if there is a library for it: memory
/// that is dropped while kernels run has to wait.
fn fake_gpus() -> Vec<(&'static str, String)> {
    if !has(Need::FakeGpuLibrary) {
        return Vec::new();
    }
    let folder = std::env::var("SPARK_CCL_TEST_FAKE_GPUS").unwrap();
    let env = [
        ("LD_LIBRARY_PATH", &*folder),
        ("FAKE_GPUS", "1"),
        ("SPARK_CCL_BACKEND", "engine"),
        ("SPARK_CCL_DEVICE", "0"),
        ("SPARK_CCL_SHARE_GPU", "1"),
        ("SPARK_CCL_GPU_PROTOCOL", "proxy"),
        ("SPARK_CCL_GPU_PINNED", "1"),
    ];
    env.map(|(name, value)| (name, value.to_owned())).into()
}
