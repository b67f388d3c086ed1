//! Ranks that are real processes: the test program starts itself, once per rank. A rank obeys lines
//! on its standard input (`processes_rank.rs`) and answers on its standard error. Ranks are killed
//! at the end of the test, and by the kernel if the test itself is killed.

use std::cell::Cell;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Marks a process as a rank.
pub(crate) const ROLE: &str = "SPARK_TEST_RANK";
/// Marks answers among everything else that a process prints.
pub(crate) const MARK: &str = "@ ";
/// The time limit of everything that is not the test's subject.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(90);

/// How many tests of this kind run at once. Mostly, they wait.
const PLACES: usize = 4;

static TAKEN: Mutex<usize> = Mutex::new(0);
static FREED: Condvar = Condvar::new();

/// A test's share of the machine. Dropping it returns it.
pub(crate) struct Place(usize);

/// Waits for one of the places.
pub(crate) fn place() -> Place {
    take(1)
}

/// Waits for all places: the test needs the cores and the memory for itself.
pub(crate) fn alone() -> Place {
    take(PLACES)
}

fn take(count: usize) -> Place {
    // A test that panics leaves the number correct.
    let taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    let is_full = |taken: &mut usize| *taken + count > PLACES;
    *FREED
        .wait_while(taken, is_full)
        .unwrap_or_else(PoisonError::into_inner) += count;
    Place(count)
}

impl Drop for Place {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) -= self.0;
        FREED.notify_all();
    }
}

/// The promise for faults that the control plane can see: an error within 2 s. On a slower,
/// emulated machine, `TEST_PATIENCE` is a factor.
pub(crate) fn promptly() -> Duration {
    Duration::from_secs(2) * patience()
}

/// How often a promise may be broken in a row: a busy machine breaks it by chance.
const ATTEMPTS: usize = 5;

/// Notes whether answers come within the promised time.
#[derive(Default)]
pub(crate) struct Stopwatch(Cell<Option<Duration>>);

impl Stopwatch {
    /// The next answer of a rank, which is promised within `limit` after `since`.
    pub(crate) fn hear(&self, rank: &Rank, since: Instant, limit: Duration) -> String {
        let answer = rank.hear();
        self.note(since, limit);
        answer
    }

    /// Notes that the event promised within `limit` after `since` has come.
    pub(crate) fn note(&self, since: Instant, limit: Duration) {
        let took = since.elapsed();
        if took > limit {
            self.0.set(Some(took));
        }
    }
}

/// Attempts a test of promised times until all of them are kept.
pub(crate) fn in_time(mut attempt: impl FnMut(&Stopwatch)) {
    for _ in 0..ATTEMPTS {
        let watch = Stopwatch::default();
        attempt(&watch);
        match watch.0.get() {
            None => return,
            Some(took) => eprintln!("only after {took:?}"),
        }
    }
    panic!("what is promised came too late each time");
}

/// The promise for a host that vanishes.
pub(crate) fn lost_host() -> Duration {
    Duration::from_secs(10) * patience()
}

pub(crate) fn patience() -> u32 {
    std::env::var("TEST_PATIENCE").map_or(1, |factor| factor.parse().unwrap())
}

/// A process that is, or will become, a rank.
pub(crate) struct Rank {
    child: Child,
    /// `None` once it gets no more orders.
    orders: Option<ChildStdin>,
    answers: Receiver<String>,
    was_killed: bool,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Silence {
    /// The process still works.
    Waits,
    Ended,
}

impl Rank {
    pub(crate) fn start(env: &[(&str, &str)]) -> Self {
        Self::launch(Command::new(std::env::current_exe().unwrap()), env)
    }

    /// `command` ends with the path of this test program.
    pub(crate) fn launch(mut command: Command, env: &[(&str, &str)]) -> Self {
        for (name, _) in std::env::vars() {
            if name.starts_with("SPARK_CCL_") || name.starts_with("NCCL_") {
                command.env_remove(name);
            }
        }
        let mut child = command
            .args([
                "--ignored",
                "--exact",
                "processes_rank::rank",
                "--nocapture",
            ])
            // Choices measured on this machine do not matter, unless a test says so.
            .env("SPARK_CCL_TUNING", "off")
            .envs(env.iter().copied())
            .env(ROLE, std::process::id().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id();
        let orders = child.stdin.take();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                match line.strip_prefix(MARK) {
                    Some(answer) => drop(sender.send(answer.to_owned())),
                    None => eprintln!("process {pid}: {line}"),
                }
            }
        });
        Self {
            child,
            orders,
            answers,
            was_killed: false,
        }
    }

    /// Gives an order; the answer comes when it is done. If the process has ended, that shows then.
    pub(crate) fn order(&mut self, order: &str) {
        let orders = self.orders.as_mut().expect("not dismissed");
        let _ = writeln!(orders, "{order}");
    }

    /// Gives no more orders. The process ends when it has obeyed all of them, and so do its
    /// children.
    pub(crate) fn dismiss(&mut self) {
        self.orders = None;
    }

    /// The next answer; panics if none comes.
    pub(crate) fn hear(&self) -> String {
        self.hear_before(Instant::now() + WATCHDOG)
    }

    pub(crate) fn hear_before(&self, deadline: Instant) -> String {
        match self.answer_before(deadline) {
            Ok(answer) => answer,
            Err(Silence::Waits) => panic!("process {} does not answer", self.pid()),
            Err(Silence::Ended) => panic!("process {} has ended", self.pid()),
        }
    }

    pub(crate) fn answer_before(&self, deadline: Instant) -> Result<String, Silence> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.answers
            .recv_timeout(left)
            .map_err(|error| match error {
                RecvTimeoutError::Timeout => Silence::Waits,
                RecvTimeoutError::Disconnected => Silence::Ended,
            })
    }

    pub(crate) fn ask(&mut self, order: &str) -> String {
        self.order(order);
        self.hear()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid() as i32).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Stops the process. Waits until its threads have stopped, which they do only in their turns:
    /// on a busy machine the rank might do all its work before.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        let deadline = Instant::now() + WATCHDOG;
        while !self.has_stopped() {
            assert!(Instant::now() < deadline, "{} does not stop", self.pid());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn has_stopped(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        threads.flatten().all(|thread| {
            // A thread that has just ended has no file.
            let text = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            let state = text.rsplit_once(") ").map(|(_, state)| state);
            state.is_none_or(|state| state.starts_with('T'))
        })
    }

    /// Kills the process and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.was_killed = true;
    }

    pub(crate) fn was_killed(&self) -> bool {
        self.was_killed
    }

    /// Waits until the process has ended by itself. Returns its exit status.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        drop(std::mem::replace(&mut self.answers, channel().1));
        let deadline = Instant::now() + WATCHDOG;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "{} does not end", self.pid());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // Fails if it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `size` processes, joined in a communicator.
pub(crate) fn world(size: usize, env: &[(&str, &str)]) -> Vec<Rank> {
    let mut ranks: Vec<Rank> = (0..size).map(|_| Rank::start(env)).collect();
    join(&mut ranks);
    ranks
}

/// Makes a new communicator of these processes, with ranks in their order.
pub(crate) fn join(ranks: &mut [Rank]) {
    let id = ranks[0].ask("id");
    let size = ranks.len();
    for (number, rank) in ranks.iter_mut().enumerate() {
        rank.order(&format!("join {id} {number} {size}"));
    }
    for rank in ranks {
        assert_eq!(rank.hear(), "ok");
    }
}

/// Gives the same order to all. Returns their answers.
pub(crate) fn all(ranks: &mut [Rank], order: &str) -> Vec<String> {
    for rank in &mut *ranks {
        rank.order(order);
    }
    ranks.iter().map(Rank::hear).collect()
}

/// The carriers to all ranks, as this one reports them, once there are links.
pub(crate) fn links_of(ranks: &mut [Rank], number: usize) -> String {
    assert_all_ok(ranks, "call barrier");
    ranks[number].ask("links")
}

pub(crate) fn assert_all_ok(ranks: &mut [Rank], order: &str) {
    for answer in all(ranks, order) {
        assert_eq!(answer, "ok", "{order}");
    }
}

/// A text that names a rank names its number and its process.
#[track_caller]
pub(crate) fn assert_names(text: &str, number: usize, pid: u32) {
    let named = is_named(text, number, pid);
    assert!(named, "rank {number}, pid {pid} is not named in {text:?}");
}

pub(crate) fn is_named(text: &str, number: usize, pid: u32) -> bool {
    text.match_indices(&format!("rank {number} ("))
        .any(|(at, _)| {
            let name = text[at..].split(')').next().unwrap_or_default();
            name.ends_with(&format!(", pid {pid}"))
        })
}

/// How many seconds a rank waited before it gave up, if it did.
pub(crate) fn waited(error: &str) -> Option<f64> {
    let (_, rest) = error.split_once("gave up after ")?;
    rest.split_once("s ")?.0.parse().ok()
}

/// The ranks' logs in this folder, in files named by their process ids, once they have the text:
/// another thread writes it.
pub(crate) fn logged(folder: &Path, ranks: &[Rank], text: &str) -> String {
    let deadline = Instant::now() + WATCHDOG;
    loop {
        let file = |rank: &Rank| folder.join(rank.pid().to_string());
        let files = ranks.iter().map(|rank| std::fs::read_to_string(file(rank)));
        let logs: String = files.filter_map(Result::ok).collect();
        if logs.contains(text) {
            return logs;
        }
        assert!(Instant::now() < deadline, "{text:?} is not in {logs}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Checks that a rank gave up after this many seconds, or more on a busy machine.
#[track_caller]
pub(crate) fn assert_gave_up(error: &str, seconds: f64) {
    assert!(waited(error) >= Some(seconds), "{error}");
}

#[track_caller]
pub(crate) fn assert_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

/// A duration that differs from run to run.
pub(crate) fn some_time(range: std::ops::Range<u64>) -> Duration {
    let nanos = std::time::UNIX_EPOCH.elapsed().unwrap().subsec_nanos();
    let spread = range.end - range.start;
    Duration::from_millis(range.start + u64::from(nanos / 1000) % spread)
}
