//! Logs that nobody reads, and subscribers that block or call the library: calls, drops and the
//! exit return all the same. Ranks are processes of this program; rank 0 reports the outcomes of
//! its calls on its standard output.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, mkfifoat};
use spark_ccl::{Communicator, RedOp, rank_variables};

use crate::blocked_log::fill;
use crate::processes::{WATCHDOG, assert_contains};

/// Rank 0's handling of its log.
const HOW: &str = "SPARK_TEST_LOG";

/// A job of three ranks.
struct Job {
    ranks: Vec<Child>,
    said: Receiver<String>,
}

impl Job {
    fn start(how: &str, env: &[(&str, &str)]) -> Self {
        let id = Communicator::builder().unique_id().unwrap();
        let start = |rank: usize| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command
                .args(["--ignored", "--exact", "logging::rank", "--nocapture"])
                .envs(rank_variables(&id, rank, 3))
                .env(HOW, how)
                .env("SPARK_CCL_TIMEOUT", "60")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            if rank == 0 {
                command.envs(env.iter().copied());
            }
            command.spawn().unwrap()
        };
        let mut ranks: Vec<Child> = (0..3).map(start).collect();
        let lines = BufReader::new(ranks[0].stdout.take().unwrap()).lines();
        let (sender, said) = channel();
        std::thread::spawn(move || {
            let answers = lines.map_while(Result::ok);
            for line in answers.filter_map(|line| Some(line.split_once("@ ")?.1.to_owned())) {
                let _ = sender.send(line);
            }
        });
        Self { ranks, said }
    }

    fn hear(&self) -> String {
        self.said.recv_timeout(WATCHDOG).expect("rank 0 hangs")
    }

    fn kill(&mut self, rank: usize) {
        self.ranks[rank].kill().unwrap();
    }

    /// Both others die, one after the other. Rank 0's calls return with errors that name them, and
    /// it ends.
    fn play(mut self) -> String {
        assert_eq!(self.hear(), "ready");
        self.kill(1);
        assert_contains(&self.hear(), &["rank 1"]);
        // The monitor must still be there to notice this.
        self.kill(2);
        assert_contains(&self.hear(), &["rank 2"]);
        assert_eq!(self.hear(), "dropped");
        self.end()
    }

    /// Waits until rank 0 ends by itself. Returns its standard error.
    fn end(&mut self) -> String {
        let mut stderr = self.ranks[0].stderr.take().unwrap();
        let (ended, end) = channel();
        let mut first = self.ranks.remove(0);
        std::thread::spawn(move || ended.send(first.wait().unwrap()));
        let status = end.recv_timeout(WATCHDOG).expect("rank 0 does not end");
        assert!(status.success(), "{status}");
        let mut text = String::new();
        stderr.read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            let _ = rank.kill();
            let _ = rank.wait();
        }
    }
}

#[test]
fn a_full_pipe_holds_up_no_call() {
    Job::start("fill", &[("SPARK_CCL_LOG", "trace")]).play();
    Job::start("fill", &[("NCCL_DEBUG", "WARN")]).play();
}

#[test]
fn a_log_that_is_a_pipe_without_a_reader_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    mkfifoat(CWD, &path, Mode::RWXU).unwrap();
    let printed = Job::start("log", &settings(&path)).play();
    assert_contains(&printed, &["spark-ccl: cannot log to"]);
    assert_contains(&printed, &["rank 1 ("]);
}

#[test]
fn a_log_that_is_a_full_pipe_holds_up_no_call() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    mkfifoat(CWD, &path, Mode::RWXU).unwrap();
    let nonblocking = OFlags::NONBLOCK.bits() as i32;
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).custom_flags(nonblocking);
    let both_ends = options.open(&path).unwrap();
    fill(&both_ends);
    let printed = Job::start("log", &settings(&path)).play();
    assert!(!printed.contains("cannot log"), "{printed}");
}

fn settings(path: &Path) -> [(&'static str, &str); 2] {
    let path = path.to_str().unwrap();
    [("SPARK_CCL_LOG", "trace"), ("SPARK_CCL_LOG_FILE", path)]
}

#[test]
fn what_is_logged_is_written_before_the_process_ends() {
    let printed = Job::start("log", &[("SPARK_CCL_LOG", "warn")]).play();
    assert_contains(&printed, &["rank 1 ("]);
    assert_contains(&printed, &["rank 2 ("]);
}

#[test]
fn a_subscriber_that_never_returns_holds_up_only_the_thread_that_called_it() {
    Job::start("block", &[]).play();
}

#[test]
fn a_subscriber_may_call_the_library() {
    Job::start("call", &[]).play();
}

#[test]
fn a_call_that_a_subscriber_holds_up_holds_up_no_other() {
    let mut job = Job::start("block caller", &[]);
    assert_eq!(job.hear(), "ready");
    assert_contains(&job.hear(), &["no more of this"]);
    job.end();
}

/// A rank of the tests above.
#[test]
#[ignore = "a rank of the other tests"]
fn rank() {
    let Ok(how) = std::env::var(HOW) else { return };
    let is_first = std::env::var("SPARK_CCL_RANK").is_ok_and(|rank| rank == "0");
    match &*how {
        "call" if is_first => tracing::subscriber::set_global_default(Caller).unwrap(),
        "block" | "block caller" if is_first => {
            tracing::subscriber::set_global_default(Blocked).unwrap();
        }
        _ => {}
    }
    let comm = Arc::new(Communicator::builder().from_env().unwrap());
    let rank = comm.rank();
    if ["call", "block caller"].contains(&&*how) {
        let _ = COMM.set(Arc::clone(&comm));
    }
    let beside = comm.split(Some(u32::from(rank == 1)), 0).unwrap().unwrap();
    for all in [&comm, &beside] {
        sum(all).unwrap();
    }
    if rank > 0 {
        // Waits to be killed.
        std::thread::sleep(WATCHDOG * 2);
        return;
    }
    if how == "fill" {
        fill(&std::io::stderr());
    }
    println!("@ ready");
    if how == "block caller" {
        std::thread::spawn(|| COMM.get().unwrap().abort("no more of this"));
        println!("@ {}", until_it_fails(&comm));
        return;
    }
    println!("@ {}", until_it_fails(&comm));
    println!("@ {}", until_it_fails(&beside));
    drop((comm, beside));
    println!("@ dropped");
}

/// The communicator for subscribers that call it.
static COMM: OnceLock<Arc<Communicator>> = OnceLock::new();

fn sum(comm: &Communicator) -> Result<(), spark_ccl::Error> {
    comm.all_reduce_in_place(&mut [1.0_f32; 16], RedOp::Sum)
        .run()
}

fn until_it_fails(comm: &Communicator) -> String {
    loop {
        if let Err(error) = sum(comm) {
            assert!(comm.check().is_err());
            return error.to_string();
        }
    }
}

/// A subscriber that calls the library at every event, and ends the process if one of the library's
/// threads gets here.
struct Caller;
/// A subscriber that never returns from a warning.
struct Blocked;

impl Caller {
    fn at(event: &tracing::Event<'_>) {
        check_thread();
        let Some(comm) = COMM.get() else { return };
        let _ = comm.check();
        if *event.metadata().level() == tracing::Level::WARN {
            comm.abort("a warning");
        }
    }
}

impl Blocked {
    fn at(event: &tracing::Event<'_>) {
        // Not the thread of the calls, which its own warning may hold up.
        let is_elsewhere = check_thread() != "logging::rank";
        if is_elsewhere && *event.metadata().level() == tracing::Level::WARN {
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        }
    }
}

/// Checks this thread, and returns its name.
fn check_thread() -> String {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or_default();
    if name.starts_with("spark-") && name != "spark-log" {
        println!("@ an event comes from {name}");
        std::process::exit(3);
    }
    name.to_owned()
}

macro_rules! subscriber {
    ($type:ty) => {
        impl tracing::Subscriber for $type {
            fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
                true
            }
            fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
                tracing::span::Id::from_u64(1)
            }
            fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
            fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
            fn event(&self, event: &tracing::Event<'_>) {
                Self::at(event);
            }
            fn enter(&self, _: &tracing::span::Id) {}
            fn exit(&self, _: &tracing::span::Id) {}
        }
    };
}

subscriber!(Caller);
subscriber!(Blocked);
