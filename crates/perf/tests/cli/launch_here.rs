//! `launch` on this host alone: readers that are slow or read nothing, and signals.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::io::ioctl_fionread;
use rustix::process::{Pid, Signal, kill_process};

use crate::launch::command_of;
use crate::program::{Run, command};

/// Only guards against deadlock.
const PATIENCE: Duration = Duration::from_secs(60);

/// The numbers from 1 on, each on a line of its own.
fn numbers(last: usize) -> String {
    (1..=last).map(|number| number.to_string() + "\n").collect()
}

#[test]
fn a_slow_reader_gets_every_line() {
    const LAST: usize = 40_000;
    let mut launch = command_of(
        &["--local", "1", "--no-prefix"],
        &format!("exec seq {LAST}"),
    );
    let mut launch = launch.spawn().unwrap();
    let mut pipe = launch.stdout.take().unwrap();
    let (mut text, mut part) = (Vec::<u8>::new(), [0; 8 << 10]);
    loop {
        // The pipes are full all the time, also when the rank has ended.
        std::thread::sleep(Duration::from_millis(100));
        match pipe.read(&mut part).unwrap() {
            0 => break,
            read => text.extend(&part[..read]),
        }
    }
    assert_eq!(end(launch).code, Some(0));
    assert!(text == numbers(LAST).into_bytes(), "{} bytes", text.len());
}

/// The launcher takes a line in parts of 64 KiB.
#[test]
fn a_line_as_long_as_a_part_stays_one_line() {
    let script = "head -c 65536 /dev/zero | tr '\\0' x; echo; echo; head -c 65537 /dev/zero | tr '\\0' y; echo";
    let mut launch = command_of(&["--local", "1", "--no-prefix"], script);
    let run = Run::from(launch.output().unwrap());
    let lengths: Vec<_> = run.stdout.lines().map(str::len).collect();
    assert_eq!(lengths, [65536, 0, 65536, 1], "{}", run.stderr);
}

#[test]
fn an_empty_variable_is_set() {
    let words = ["--local", "1", "--no-prefix", "-x", "EMPTY="];
    let mut launch = command_of(&words, "echo ${EMPTY-unset} ${EMPTY+set} ${NCCL_EMPTY+set}");
    let run = Run::from(launch.env("NCCL_EMPTY", "").output().unwrap());
    assert_eq!(run.stdout, "set set\n", "{}", run.stderr);
}

#[test]
fn a_reader_that_pauses_gets_every_line() {
    // They fill the pipes on the way, but for a part of the last, so the rank ends at once.
    const LAST: usize = 22_000;
    let mut launch = command_of(
        &["--local", "1", "--no-prefix", "--lost-after", "4"],
        &format!("seq {LAST}; exit 3"),
    );
    let mut launch = launch.spawn().unwrap();
    // Longer than the launcher may be silent: signs of life do not depend on the reader.
    std::thread::sleep(Duration::from_secs(6));
    let mut text = String::new();
    let mut pipe = launch.stdout.take().unwrap();
    pipe.read_to_string(&mut text).unwrap();
    let run = end(launch);
    assert!(text == numbers(LAST), "{} bytes", text.len());
    assert_eq!(run.code, Some(3), "{}", run.stderr);
    let named = "rank 0 on localhost ended with exit code 3";
    assert!(run.stderr.contains(named), "{}", run.stderr);
}

/// A process that a rank has left in the background prints as long as it runs.
#[test]
fn lines_without_end_do_not_hold_back_the_end_of_their_rank() {
    let mut launch = command_of(&["--local", "1"], "yes & exit 7");
    let mut launch = launch.stdout(Stdio::null()).spawn().unwrap();
    until(|| launch.try_wait().unwrap());
    let run = end(launch);
    assert_eq!(run.code, Some(7), "{}", run.stderr);
    let named = "rank 0 on localhost ended with exit code 7";
    assert!(run.stderr.contains(named), "{}", run.stderr);
}

#[test]
fn a_signal_that_is_ignored_at_the_start_does_not_end_the_job() {
    let mut job = Command::new("sh");
    let launch = command_of(&["--local", "1"], "echo up; sleep 0.5; echo done");
    job.args(["-c", "trap '' HUP; exec \"$@\"", "sh"])
        .arg(launch.get_program())
        .args(launch.get_args())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let mut job = job.spawn().unwrap();
    let mut lines = BufReader::new(job.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "[0] up");
    kill_process(id(&job), Signal::HUP).unwrap();
    let rest: Vec<_> = lines.map(Result::unwrap).collect();
    let run = end(job);
    assert_eq!((rest, run.code), (vec!["[0] done".to_owned()], Some(0)));
}

/// A rank that fills all pipes, since nobody reads, and its process.
fn unread(words: &[&str]) -> (Child, Pid) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let words = [&["--local", "1"], words].concat();
    let script = format!("echo $$ > {}; exec yes", file.path().display());
    let job = command_of(&words, &script).spawn().unwrap();
    let rank = until(|| {
        let text = std::fs::read_to_string(file.path()).unwrap();
        Pid::from_raw(text.strip_suffix('\n')?.parse().ok()?)
    });
    // The launcher cannot write any more.
    let (mut filled, mut pause) = (0, 0);
    until(|| {
        let now = ioctl_fionread(job.stdout.as_ref().unwrap()).unwrap();
        pause = if now > 0 && now == filled {
            pause + 1
        } else {
            0
        };
        filled = now;
        (pause == 20).then_some(())
    });
    (job, rank)
}

#[test]
fn signals_end_a_job_whose_output_nobody_reads() {
    for signal in [Signal::TERM, Signal::INT] {
        let (mut job, rank) = unread(&["--grace", "0.2"]);
        kill_process(id(&job), signal).unwrap();
        until(|| rustix::process::test_kill_process(rank).err());
        // The launcher still has lines to print, and waits for a reader, or another signal.
        kill_process(id(&job), signal).unwrap();
        let status = job.wait().unwrap();
        assert_eq!(status.code(), Some(128 + signal.as_raw()), "{status}");
    }
}

#[test]
fn a_signal_ends_the_wait_for_the_first_node() {
    let args = [
        "launch",
        "--node-of",
        "localhost",
        "--master-addr",
        "nowhere.invalid",
        "true",
    ];
    let mut job = command(&args).spawn().unwrap();
    let mut lines = BufReader::new(job.stderr.take().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    assert!(
        line.contains("waiting for the name nowhere.invalid"),
        "{line}"
    );
    kill_process(id(&job), Signal::TERM).unwrap();
    assert_eq!(end(job).code, Some(143));
}

/// The end of a process, and what it says on standard error.
fn end(child: Child) -> Run {
    child.wait_with_output().unwrap().into()
}

fn id(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed()).unwrap()
}

/// Waits until `come` has a value.
fn until<T>(mut come: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(it) = come() {
            return it;
        }
        assert!(Instant::now() < deadline, "it does not come");
        std::thread::sleep(Duration::from_millis(10));
    }
}
