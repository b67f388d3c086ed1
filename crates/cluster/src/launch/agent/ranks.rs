//! The ranks of this host: their processes, and the reports about them.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use spark_ccl_console::tether;

use super::Event;
use crate::launch::wire::{Order, RankEnd, RankReport, Stream, Variable};

/// A longer line comes in parts.
const LONGEST_LINE: u64 = 64 << 10;
/// For how long an output must be silent to be taken for finished: another process may hold it open
/// for good.
const SILENCE: Duration = Duration::from_millis(500);
/// For how long lines may hold back the end of their rank: a process that it has left in the
/// background may print without end.
const LAST_LINES: Duration = Duration::from_secs(5);

/// The ranks that were started.
pub(super) struct Ranks {
    /// How many have not been reported as ended.
    pub(super) running: usize,
}

impl Ranks {
    /// Starts the ranks; each comes to an [`Event::Reported`], and all to an [`Event::Alone`] and
    /// an [`Event::Told`]. The calling thread must not end before them.
    pub(super) fn start(order: &Order, events: &Sender<Event>) -> Self {
        let mut ends = HashMap::new();
        let mut reporters = Vec::new();
        for (local, variables) in order.ranks.iter().enumerate() {
            let (end, ended) = channel();
            let outputs = match spawn(order, variables) {
                Ok(child) => {
                    ends.insert(Pid::from_child(&child), end);
                    copy(local, child)
                }
                Err(error) => {
                    write(&RankReport::NotStarted(local, why(order, &error)));
                    drop(end);
                    Vec::new()
                }
            };
            let events = events.clone();
            reporters.push(std::thread::spawn(move || {
                report(local, &ended, &outputs, &events);
                outputs
            }));
        }
        let running = reporters.len();
        let events = events.clone();
        std::thread::spawn(move || {
            reap(&ends);
            drop(ends);
            // The receiver is gone if this process is about to end.
            let _ = events.send(Event::Alone);
            finish(reporters);
            let _ = events.send(Event::Told);
        });
        Self { running }
    }
}

/// Starts a rank. `spark-perf` is this program where the PATH that ssh gives to commands has none:
/// in `~/.cargo/bin`.
fn spawn(order: &Order, variables: &[Variable]) -> io::Result<Child> {
    let name = order.command.first().map_or("", String::as_str);
    let started = command(Path::new(name), order, variables).spawn();
    match started {
        Err(error) if error.kind() == ErrorKind::NotFound && name == "spark-perf" => {
            command(&std::env::current_exe()?, order, variables).spawn()
        }
        started => started,
    }
}

fn command(program: &Path, order: &Order, variables: &[Variable]) -> Command {
    let mut command = Command::new(program);
    command
        .args(&order.command[1..])
        .current_dir(&order.directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // In a process group of its own, so that a rank that signals its group does not reach the
        // others.
        .process_group(0);
    for (name, value) in variables {
        match value {
            None => command.env_remove(name),
            Some(value) => command.env(name, value),
        };
    }
    tether::ends_with_this_thread(&mut command, Signal::KILL);
    command
}

/// Why a rank could not be started.
fn why(order: &Order, error: &io::Error) -> String {
    let (command, folder) = (&order.command[0], order.directory.display());
    if !order.directory.is_dir() {
        return format!(
            "there is no folder {folder}: make it there, or choose another with --chdir"
        );
    }
    if command.contains('/') {
        return format!("{command}: {error}");
    }
    format!(
        "{command}: {error}; it is looked for on the PATH that ssh gives to commands: name the \
         whole path, or pass yours on with -x PATH"
    )
}

/// A thread that copies an output of a rank to the launcher.
struct Output {
    thread: JoinHandle<()>,
    /// Whether the thread has a line that the launcher has not taken. Guards no other memory, so
    /// all accesses are relaxed.
    is_writing: Arc<AtomicBool>,
}

impl Output {
    fn copy(local: usize, stream: Stream, pipe: impl Read + Send + 'static) -> Self {
        let is_writing = Arc::new(AtomicBool::new(false));
        let writing = Arc::clone(&is_writing);
        let thread = std::thread::spawn(move || lines(local, stream, pipe, &writing));
        Self { thread, is_writing }
    }

    fn is_silent(&self) -> bool {
        !self.is_writing.load(Ordering::Relaxed)
    }
}

/// Copies both outputs of a rank.
fn copy(local: usize, mut child: Child) -> Vec<Output> {
    let (output, error) = (child.stdout.take(), child.stderr.take());
    let copies = [
        output.map(|pipe| Output::copy(local, Stream::Output, pipe)),
        error.map(|pipe| Output::copy(local, Stream::Error, pipe)),
    ];
    copies.into_iter().flatten().collect()
}

fn lines(local: usize, stream: Stream, pipe: impl Read, is_writing: &AtomicBool) {
    let mut pipe = BufReader::new(pipe);
    let mut is_open = false;
    loop {
        let mut line = Vec::new();
        match (&mut pipe).take(LONGEST_LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let is_ended = line.last() == Some(&b'\n');
        if is_ended {
            line.pop();
        }
        let is_told = is_open && line.is_empty();
        is_open = !is_ended;
        // All of this line has come in parts already.
        if is_told {
            continue;
        }
        is_writing.store(true, Ordering::Relaxed);
        write(&RankReport::Line(local, stream, line));
        is_writing.store(false, Ordering::Relaxed);
    }
}

/// Waits for the ends of outputs, or until they are silent, but no longer than the limit.
fn wait_for(outputs: &[Output], limit: Duration) {
    let start = Instant::now();
    let mut silent = start;
    let is_open = |output: &Output| !output.thread.is_finished();
    while outputs.iter().any(is_open) && silent.elapsed() < SILENCE && start.elapsed() < limit {
        if !outputs.iter().all(Output::is_silent) {
            silent = Instant::now();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Reports the end of a rank after its last lines.
fn report(local: usize, ended: &Receiver<RankEnd>, outputs: &[Output], events: &Sender<Event>) {
    // A rank that was not started does not end; that has been reported.
    if let Ok(end) = ended.recv() {
        wait_for(outputs, LAST_LINES);
        write(&RankReport::Ended(local, end));
    }
    // The receiver is gone if this process is about to end.
    let _ = events.send(Event::Reported);
}

/// Waits until all output is reported, also that of processes that ranks have left in the
/// background: these have ended. The launcher may take as long as it likes to read it.
fn finish(reporters: Vec<JoinHandle<Vec<Output>>>) {
    for reporter in reporters {
        // None comes from a thread that panicked.
        wait_for(&reporter.join().unwrap_or_default(), Duration::MAX);
    }
}

/// Waits for children, ranks and adopted ones, until there are none. Reporters wait for their ends.
fn reap(ends: &HashMap<Pid, Sender<RankEnd>>) {
    while let Ok(child) = retry_on_intr(|| rustix::process::wait(WaitOptions::empty())) {
        let Some((id, status)) = child else { continue };
        if let Some((end, sender)) = end(status).zip(ends.get(&id)) {
            // The reporter is there until it has heard this.
            let _ = sender.send(end);
        }
    }
}

fn end(status: WaitStatus) -> Option<RankEnd> {
    let code = status.exit_status().map(|code| RankEnd::Code(code as u8));
    let signal = status.terminating_signal();
    code.or_else(|| signal.map(|signal| RankEnd::Signal(signal as u8)))
}

/// Writes a report at once and whole. Blocks while the launcher does not read; fails when it is
/// gone, which the agent notices by its input.
fn write(report: &RankReport) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(&report.encode()).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_is_found_without_a_path_to_it() {
        let order = |program: &str| Order {
            directory: "/".into(),
            command: vec![program.to_owned(), "--list".to_owned()],
            grace: 1.0,
            lost_after: 1.0,
            ranks: Vec::new(),
        };
        let nowhere = [("PATH".to_owned(), Some("/nonexistent".to_owned()))];
        // Here, this program is that of the tests.
        let started = spawn(&order("spark-perf"), &nowhere).unwrap();
        let output = started.wait_with_output().unwrap();
        assert!(String::from_utf8_lossy(&output.stdout).contains("this_program_is_found"));
        let other = spawn(&order("another-program"), &nowhere).unwrap_err();
        assert_eq!(other.kind(), ErrorKind::NotFound);
    }
}
