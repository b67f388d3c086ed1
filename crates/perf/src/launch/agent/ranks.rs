//! The ranks of this host: their processes, and what is reported of them.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use super::Event;
use crate::launch::wire::{End, Order, Report, Stream};
use crate::spawn::tether;

/// A longer line comes in parts.
const LONGEST_LINE: u64 = 64 << 10;
/// How long the end of a rank waits for its last lines: a process that it has started may hold its output open.
const LAST_LINES: Duration = Duration::from_millis(500);
/// How long the reports of all ranks may take once all processes are gone: the launcher may not read them.
const LAST_REPORTS: Duration = Duration::from_secs(5);

/// The ranks that were started.
pub(super) struct Ranks {
    /// How many have not been reported as ended.
    pub(super) running: usize,
    reporters: Vec<JoinHandle<()>>,
}

impl Ranks {
    /// Starts the ranks; each comes to an [`Event::Reported`]. The calling thread must not end before them.
    pub(super) fn start(order: &Order, events: &Sender<Event>) -> Self {
        let mut ends = HashMap::new();
        let mut reporters = Vec::new();
        for (local, variables) in order.ranks.iter().enumerate() {
            let (end, ended) = channel();
            let outputs = match command(order, variables).spawn() {
                Ok(child) => {
                    ends.insert(Pid::from_child(&child), end);
                    copy(local, child)
                }
                Err(error) => {
                    write(&Report::NotStarted(local, why(order, &error)));
                    drop(end);
                    Vec::new()
                }
            };
            let events = events.clone();
            reporters.push(std::thread::spawn(move || {
                report(local, &ended, &outputs, &events);
            }));
        }
        let events = events.clone();
        std::thread::spawn(move || reap(&ends, &events));
        Self {
            running: reporters.len(),
            reporters,
        }
    }

    /// Waits until the launcher has got all reports, if it takes them.
    pub(super) fn wait_for_reports(&self) {
        wait_for(&self.reporters, LAST_REPORTS);
    }
}

fn command(order: &Order, variables: &[(String, String)]) -> Command {
    let mut command = Command::new(order.command.first().map_or("", String::as_str));
    command
        .args(&order.command[1..])
        .current_dir(&order.directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // A rank that signals its group does not mean the others.
        .process_group(0);
    for (name, value) in variables {
        match value.as_str() {
            "" => command.env_remove(name),
            value => command.env(name, value),
        };
    }
    tether::ends_with_this_thread(&mut command, Signal::KILL);
    command
}

/// Why a rank could not be started.
fn why(order: &Order, error: &std::io::Error) -> String {
    let (command, folder) = (&order.command[0], order.directory.display());
    if !order.directory.is_dir() {
        return format!(
            "there is no folder {folder}: make it there, or choose another with --chdir"
        );
    }
    format!(
        "{command}: {error}; it is looked for on the PATH that ssh gives to commands: name the whole path, or pass \
         yours on with -x PATH"
    )
}

/// Copies the output of a rank to the launcher.
fn copy(local: usize, mut child: Child) -> Vec<JoinHandle<()>> {
    let (output, error) = (child.stdout.take(), child.stderr.take());
    let copies = [
        output.map(|pipe| std::thread::spawn(move || lines(local, Stream::Output, pipe))),
        error.map(|pipe| std::thread::spawn(move || lines(local, Stream::Error, pipe))),
    ];
    copies.into_iter().flatten().collect()
}

fn lines(local: usize, stream: Stream, pipe: impl Read) {
    let mut pipe = BufReader::new(pipe);
    loop {
        let mut line = Vec::new();
        match (&mut pipe).take(LONGEST_LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        write(&Report::Line(local, stream, line));
    }
}

/// Reports the end of a rank after its last lines.
fn report(local: usize, ended: &Receiver<End>, outputs: &[JoinHandle<()>], events: &Sender<Event>) {
    // A rank that was not started does not end; that has been reported.
    if let Ok(end) = ended.recv() {
        wait_for(outputs, LAST_LINES);
        write(&Report::Ended(local, end));
    }
    // Nobody hears it when this process is about to end.
    let _ = events.send(Event::Reported);
}

/// Waits for children, ranks and adopted ones, until there are none.
fn reap(ends: &HashMap<Pid, Sender<End>>, events: &Sender<Event>) {
    while let Ok(child) = retry_on_intr(|| rustix::process::wait(WaitOptions::empty())) {
        let Some((id, status)) = child else { continue };
        if let Some((end, sender)) = end(status).zip(ends.get(&id)) {
            // The reporter waits for it.
            let _ = sender.send(end);
        }
    }
    let _ = events.send(Event::Alone);
}

fn end(status: WaitStatus) -> Option<End> {
    let code = status.exit_status().map(|code| End::Code(code as u8));
    let signal = status.terminating_signal();
    code.or_else(|| signal.map(|signal| End::Signal(signal as u8)))
}

/// Writes a report at once and whole. Blocks while the launcher does not read; fails when it is gone, which the agent
/// notices by its input.
fn write(report: &Report) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(&report.encode()).and_then(|()| out.flush());
}

fn wait_for(threads: &[JoinHandle<()>], limit: Duration) {
    let deadline = Instant::now() + limit;
    while threads.iter().any(|thread| !thread.is_finished()) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
}
