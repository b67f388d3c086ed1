//! Test support: ranks that are processes. The test binary starts itself, and connects the
//! processes over TCP.
//!
//! A rank executes one order per line of its standard input, and answers each with a line. It exits
//! when its input ends, so that none outlives the test.

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use socket2::Socket;
use spark_ccl_control::{Fault, Monitor, Watch, neighbours};
use spark_ccl_fork::Unshared;

use super::{Streams, fault, name, names, until, words};

const RANK: &str = "SPARK_CONTROL_TEST_RANK";
const SIZE: &str = "SPARK_CONTROL_TEST_SIZE";
const FOLDER: &str = "SPARK_CONTROL_TEST_FOLDER";
/// Distinguishes the answers from what the test harness prints.
const ANSWER: &str = "answer: ";

/// A rank that runs as a process of its own; killed when dropped.
pub(crate) struct Rank {
    child: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

/// A world of processes, each running the test `entry`, which calls [`serve_if_asked`].
pub(crate) fn spawn_world(size: u32, entry: &str) -> Vec<Rank> {
    let folder = tempfile::tempdir().unwrap();
    let mut ranks: Vec<Rank> = (0..size)
        .map(|rank| Rank::spawn(rank, size, folder.path(), entry))
        .collect();
    // Once all ranks are connected, none needs the folder.
    for rank in &mut ranks {
        assert_eq!(rank.answer(), "ready");
    }
    ranks
}

impl Rank {
    fn spawn(rank: u32, size: u32, folder: &Path, entry: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", entry, "--nocapture"])
            .env(RANK, rank.to_string())
            .env(SIZE, size.to_string())
            .env(FOLDER, folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let orders = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap()).lines();
        Self {
            child,
            orders,
            answers,
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Sends an order without waiting for the answer.
    pub(crate) fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    /// The next answer; panics when the process ends without one.
    pub(crate) fn answer(&mut self) -> String {
        let mut lines = self.answers.by_ref().map(Result::unwrap);
        // The harness prints the test's name before the first answer, on the same line.
        lines
            .find_map(|line| line.split_once(ANSWER).map(|(_, answer)| answer.to_owned()))
            .expect("the process ended without an answer")
    }

    pub(crate) fn ask(&mut self, order: &str) -> String {
        self.order(order);
        self.answer()
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // Fails if the process has exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves as a rank, if this process was started as one.
pub(crate) fn serve_if_asked() {
    let Ok(rank) = std::env::var(RANK) else {
        return;
    };
    let rank = rank.parse().unwrap();
    let size = std::env::var(SIZE).unwrap().parse().unwrap();
    let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
    let monitor = Monitor::start(rank, names(size), connect(rank, size, &folder), None).unwrap();
    let watch = monitor.watch(7, (0..size).collect(), words);
    answer("ready");
    for order in std::io::stdin().lines() {
        answer(&execute(&order.unwrap(), &watch));
    }
}

fn answer(text: &str) {
    println!("{ANSWER}{text}");
}

fn execute(order: &str, watch: &Arc<Watch>) -> String {
    let (verb, sequence) = order.split_once(' ').unwrap_or((order, "0"));
    let sequence = sequence.parse().unwrap();
    match verb {
        "fault" => {
            until("an end", || !watch.is_whole());
            if !watch.failed() {
                watch.enter(1, [1, 1]);
            }
            fault(watch).to_string()
        }
        "failed" => watch.failed().to_string(),
        "call" => {
            watch.enter(sequence, [1, sequence]);
            watch.announce(sequence, [1, sequence], None);
            "called".into()
        }
        "late" => {
            let late = watch.late(sequence, Duration::from_secs(5));
            let late: Vec<usize> = late.iter().map(|late| late.rank.rank).collect();
            format!("{late:?}")
        }
        "give-up" => {
            watch.raise(Fault::TimedOut {
                by: watch.member(0),
                sequence,
                words: words([1, sequence]),
                waited: Duration::from_secs(9),
                late: watch.late(sequence, Duration::from_secs(5)),
            });
            "gave up".into()
        }
        "exit" => std::process::exit(3),
        other => panic!("{other:?} is no order"),
    }
}

/// Connects to the neighbours: each rank listens, and connects to the lower ones.
fn connect(rank: u32, size: u32, folder: &Path) -> Streams {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    publish(rank, listener.local_addr().unwrap().port(), folder);
    let mut streams = Vec::new();
    let mut to_accept = 0;
    for peer in neighbours(rank, size) {
        if peer > rank {
            to_accept += 1;
            continue;
        }
        let mut stream = TcpStream::connect(("127.0.0.1", find(peer, folder))).unwrap();
        stream.write_all(&rank.to_le_bytes()).unwrap();
        streams.push((peer, Unshared::new(Socket::from(stream)).into()));
    }
    for _ in 0..to_accept {
        let (mut stream, _) = listener.accept().unwrap();
        let mut peer = [0; 4];
        stream.read_exact(&mut peer).unwrap();
        streams.push((
            u32::from_le_bytes(peer),
            Unshared::new(Socket::from(stream)).into(),
        ));
    }
    streams
}

fn publish(rank: u32, port: u16, folder: &Path) {
    let draft = folder.join(format!("draft-{rank}"));
    std::fs::write(&draft, port.to_string()).unwrap();
    std::fs::rename(draft, folder.join(rank.to_string())).unwrap();
}

fn find(peer: u32, folder: &Path) -> u16 {
    let file = folder.join(peer.to_string());
    until(&format!("{} listens", name(peer)), || file.exists());
    std::fs::read_to_string(file).unwrap().parse().unwrap()
}
