//! Processes that are killed, stopped, or started by a launcher.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use spark_ccl_testing::{Need, free_port, has};

use crate::program::{Run, command};

/// Only guards against deadlock.
const PATIENCE: Duration = Duration::from_secs(120);

const ENDLESS: [&str; 9] = [
    "all_reduce",
    "-b",
    "64K",
    "-e",
    "64K",
    "-N",
    "0",
    "--procs",
    "3",
];

/// An endless run that has already printed some rows.
struct Endless {
    parent: Child,
    pid: Pid,
    /// The ranks' processes.
    ranks: Vec<Pid>,
}

impl Endless {
    fn start(more: &[&str]) -> Self {
        let args: Vec<&str> = ENDLESS.iter().chain(more).copied().collect();
        let mut parent = command(&args).spawn().unwrap();
        let mut lines = BufReader::new(parent.stdout.take().unwrap()).lines();
        let mut ranks = Vec::new();
        loop {
            let line = lines.next().unwrap().unwrap();
            if line.starts_with("#  Rank ") {
                let pid = line.split_whitespace().nth(6).unwrap();
                ranks.push(Pid::from_raw(pid.parse().unwrap()).unwrap());
            }
            if !line.starts_with('#') {
                break;
            }
        }
        // Keeps reading, so that the table does not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        let pid = Pid::from_raw(parent.id().try_into().unwrap()).unwrap();
        assert_eq!(ranks.len(), 3);
        Self { parent, pid, ranks }
    }

    /// Waits until all processes have ended; returns the exit code and the standard error.
    fn end(mut self) -> (Option<i32>, String) {
        let mut text = String::new();
        let mut errors = self.parent.stderr.take().unwrap();
        errors.read_to_string(&mut text).unwrap();
        let code = self.parent.wait().unwrap().code();
        self.all_gone();
        (code, text)
    }

    fn all_gone(&self) {
        let deadline = Instant::now() + PATIENCE;
        while self.ranks.iter().any(|&rank| alive(rank)) {
            assert!(Instant::now() < deadline, "ranks that do not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Whether a process runs. A zombie that has not been reaped yet does not.
fn alive(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).unwrap_or_default();
    let state = stat.rsplit(") ").next().unwrap_or_default();
    test_kill_process(pid).is_ok() && !state.is_empty() && !state.starts_with(['Z', 'X'])
}

#[test]
fn a_killed_rank_ends_the_run() {
    for victim in [0, 2] {
        let run = Endless::start(&[]);
        kill_process(run.ranks[victim], Signal::KILL).unwrap();
        let (code, text) = run.end();
        assert_eq!(code, Some(3), "{text}");
        let killed = format!("process {victim} was killed by signal 9");
        assert!(text.contains(&killed), "{text}");
        // The survivors report which rank has died.
        for rank in (0..3).filter(|rank| *rank != victim) {
            let reporter = format!("spark-perf: rank {rank}: ");
            let report = text.lines().find(|line| line.starts_with(&reporter));
            let gone = format!("rank {victim}");
            assert!(report.is_some_and(|line| line.contains(&gone)), "{text}");
        }
    }
}

#[test]
fn a_stopped_rank_is_a_timeout() {
    let run = Endless::start(&["-T", "1"]);
    kill_process(run.ranks[1], Signal::STOP).unwrap();
    let (code, text) = run.end();
    assert_eq!(code, Some(4), "{text}");
    assert!(text.contains("rank 1"), "{text}");
}

#[test]
fn signals_go_to_all_processes() {
    let run = Endless::start(&[]);
    kill_process(run.pid, Signal::TERM).unwrap();
    let (code, text) = run.end();
    assert_eq!(code, Some(128 + 15), "{text}");
}

#[test]
fn ranks_die_with_the_process_that_started_them() {
    let run = Endless::start(&[]);
    kill_process(run.pid, Signal::KILL).unwrap();
    run.all_gone();
    let (code, _) = run.end();
    assert_eq!(code, None);
}

#[test]
fn secrets_are_not_among_the_arguments() {
    let run = Endless::start(&[]);
    for rank in &run.ranks {
        let line = fs::read(format!("/proc/{}/cmdline", rank.as_raw_pid())).unwrap();
        let longest = line.split(|&byte| byte == 0).skip(1).map(<[u8]>::len).max();
        assert!(longest < Some(40), "{}", String::from_utf8_lossy(&line));
    }
    kill_process(run.pid, Signal::TERM).unwrap();
    run.end();
}

/// Starts a process as torchrun does: with a rank, a size, and the address of rank 0.
fn launched(args: &[&str], rank: usize, port: u16) -> Command {
    let mut command = command(args);
    command.envs([
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", "2".to_owned()),
        ("LOCAL_RANK", rank.to_string()),
        ("MASTER_ADDR", "127.0.0.1".to_owned()),
        ("MASTER_PORT", port.to_string()),
    ]);
    command
}

fn run_launched(args: &[&str]) -> Vec<Run> {
    let port = free_port();
    let children: Vec<_> = (0..2)
        .map(|rank| launched(args, rank, port).spawn().unwrap())
        .collect();
    children
        .into_iter()
        .map(|child| child.wait_with_output().unwrap().into())
        .collect()
}

#[test]
fn a_launchers_ranks_are_taken() {
    for (threads, ranks) in [("1", 2), ("2", 4)] {
        let args = [
            "all_reduce",
            "-b",
            "1K",
            "-e",
            "1K",
            "-n",
            "1",
            "-t",
            threads,
        ];
        let runs = run_launched(&args);
        for run in &runs {
            assert_eq!(run.code, Some(0), "{}\n{}", run.stdout, run.stderr);
        }
        assert_eq!(runs[0].stdout.matches("#  Rank ").count(), ranks);
        assert_eq!(Run::wrong(&runs[0].rows()[0]), [0, 0]);
        assert_eq!(runs[1].stdout, "");
    }
}

#[test]
fn rank_0_says_that_its_address_is_not_its_own_and_who_is_missing() {
    let args = ["all_reduce", "-b", "8", "-e", "8"];
    let mut rank_0 = launched(&args, 0, free_port());
    let rank_0 = rank_0.env("MASTER_ADDR", "203.0.113.1").envs([
        ("SPARK_CCL_SECRET", "0123456789abcdef"),
        ("SPARK_CCL_INIT_TIMEOUT", "8"),
    ]);
    let run = Run::from(rank_0.output().unwrap());
    assert_eq!(run.code, Some(4), "{}", run.stderr);
    let lines: Vec<_> = run.stderr.lines().collect();
    let [at_once, meanwhile, at_the_end] = lines[..] else {
        panic!("three lines: {}", run.stderr);
    };
    for line in lines {
        let doubt = "MASTER_ADDR=203.0.113.1 is no address of this host (it has ";
        assert!(line.contains(doubt), "{line}");
    }
    assert!(at_once.starts_with("spark-ccl: rank 0 ("), "{at_once}");
    let waits = "spark-ccl: waiting for rank 1 of 2 at the rendezvous at ";
    assert!(meanwhile.starts_with(waits), "{meanwhile}");
    let error = "spark-perf: rank 0: rank 1 of 2 did not arrive at the rendezvous within ";
    assert!(at_the_end.starts_with(error), "{at_the_end}");
}

#[test]
fn a_rank_that_finds_nobody_asks_for_rank_0() {
    let args = ["all_reduce", "-b", "8", "-e", "8"];
    let port = free_port();
    let mut rank_1 = launched(&args, 1, port);
    let run = Run::from(rank_1.env("SPARK_CCL_INIT_TIMEOUT", "8").output().unwrap());
    assert_eq!(run.code, Some(3), "{}", run.stderr);
    let place = format!("127.0.0.1:{port}");
    let lines: Vec<_> = run.stderr.lines().collect();
    let [meanwhile, at_the_end] = lines[..] else {
        panic!("two lines: {}", run.stderr);
    };
    let ask = "; has rank 0 been started there?";
    let waits =
        format!("spark-ccl: rank 1 of 2 has not reached the rendezvous at {place} (MASTER_");
    assert!(meanwhile.starts_with(&waits), "{meanwhile}");
    assert!(meanwhile.ends_with(ask), "{meanwhile}");
    let refused = format!("{place}: Connection refused (os error 111){ask}");
    let error = format!("spark-perf: rank 1: cannot reach the rendezvous: {refused}");
    assert_eq!(at_the_end, error);
}

#[test]
fn a_misspelt_setting_is_said_without_logs() {
    let mut run = command(&["all_reduce", "-b", "8", "-e", "8", "-n", "1"]);
    let run = Run::from(run.env("SPARK_CCL_TIMOUT", "5").output().unwrap());
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let line = "spark-ccl: SPARK_CCL_TIMOUT (from environment) is unknown and ignored; did you \
                mean SPARK_CCL_TIMEOUT?\n";
    assert_eq!(run.stderr, line);
}

#[test]
fn a_launcher_of_another_size_is_refused() {
    let args = ["all_reduce", "--procs", "3"];
    let run = Run::from(launched(&args, 0, 1).output().unwrap());
    assert_eq!(run.code, Some(6), "{}", run.stderr);
    assert!(
        run.stderr.contains("torchrun has started 2"),
        "{}",
        run.stderr
    );
}

#[test]
fn logs_are_not_written_through_a_link_of_another_user() {
    if !has(Need::Chown) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [log, mine] = ["log", "mine"].map(|name| folder.path().join(name));
    std::fs::write(&mine, "mine").unwrap();
    std::os::unix::fs::symlink(&mine, &log).unwrap();
    std::os::unix::fs::lchown(&log, Some(65534), None).unwrap();
    let mut command = command(&[
        "all_reduce",
        "-b",
        "8",
        "-e",
        "8",
        "-n",
        "1",
        "--procs",
        "1",
    ]);
    command
        .env("SPARK_CCL_LOG", "info")
        .env("SPARK_CCL_LOG_FILE", &log);
    let refused: Run = command.output().unwrap().into();
    assert_eq!(refused.code, Some(0), "{}", refused.stderr);
    let words = format!(
        "cannot log to {}: it is a link of another user",
        log.display()
    );
    assert!(refused.stderr.contains(&words), "{}", refused.stderr);
    assert_eq!(std::fs::read(&mine).unwrap(), b"mine");
}
