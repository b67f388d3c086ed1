//! Starts local processes: this program again, for each rank or group of ranks.

use std::io::{BufRead, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use rustix::io::retry_on_intr;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, set_parent_process_death_signal, waitid,
};
use spark_ccl::UniqueId;

use crate::cli::ranks::Member;
use crate::console;
use crate::error::{Error, exit};

/// How long the other processes have to report their errors after the first has failed.
const GRACE: Duration = Duration::from_secs(3);

enum Event {
    Ended(usize),
    Signalled(i32),
}

/// Runs this program's command line in `processes` processes, with the further arguments `more`;
/// returns the exit code for all.
///
/// The ranks connect through `id`, which this process serves.
pub(crate) fn launch(processes: usize, id: &UniqueId, more: &[String]) -> Result<u8, Error> {
    let (events, receiver) = unbounded();
    forward_signals(events.clone())?;
    let mut children = Children(Vec::new());
    for process in 0..processes {
        match start(process, processes, id, more) {
            Ok(child) => children.add(child, process, events.clone()),
            Err(error) => {
                children.signal_all(Signal::KILL);
                return Err(error);
            }
        }
    }
    Ok(wait(&mut children, &receiver))
}

/// Reads the unique id from standard input, in a process that `launch` has started.
///
/// From then on this process dies with its parent.
pub(crate) fn join(member: Member) -> Result<UniqueId, Error> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| Error::system("tying this process to its parent")(error.into()))?;
    let parent = rustix::process::getppid().map(|pid| pid.as_raw_pid() as u32);
    if parent != Some(member.parent) {
        return Err(Error::Usage(
            "the process that started this one is gone".into(),
        ));
    }
    let mut line = String::new();
    std::io::stdin()
        .lock()
        .read_line(&mut line)
        .map_err(Error::system("reading the unique id from standard input"))?;
    Ok(line
        .trim()
        .parse::<UniqueId>()
        .map_err(spark_ccl::Error::from)?)
}

fn start(process: usize, processes: usize, id: &UniqueId, more: &[String]) -> Result<Child, Error> {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| "spark-perf".into());
    // The id contains the secret, and arguments are public, so it is passed through a pipe.
    let mut child = Command::new("/proc/self/exe")
        .arg0(name)
        .args(arguments)
        .args(more)
        .arg(format!("--procs={processes}"))
        .arg(format!("--member={process}:{}", std::process::id()))
        .stdin(Stdio::piped())
        .spawn()
        .map_err(Error::system(format!("starting process {process}")))?;
    if let Some(mut pipe) = child.stdin.take() {
        // The exit status of a child that has already died reports the error.
        let _ = writeln!(pipe, "{id}");
    }
    Ok(child)
}

/// The started processes, by index; `None` once they have been waited for.
struct Children(Vec<Option<Child>>);

impl Children {
    fn add(&mut self, child: Child, process: usize, events: Sender<Event>) {
        let pid = Pid::from_child(&child);
        self.0.push(Some(child));
        std::thread::spawn(move || {
            // The process keeps its id until `wait`, so no other process gets a signal that is meant for it.
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            // If this fails, so does `wait`, whose error is reported.
            let _ = retry_on_intr(|| waitid(WaitId::Pid(pid), options));
            // The receiver is dropped only when this program is about to exit.
            let _ = events.send(Event::Ended(process));
        });
    }

    fn are_running(&self) -> bool {
        self.0.iter().any(Option::is_some)
    }

    /// The status of a process that has ended.
    fn wait(&mut self, process: usize) -> Option<std::io::Result<ExitStatus>> {
        self.0[process].take().map(|mut child| child.wait())
    }

    fn signal_all(&self, signal: Signal) {
        for child in self.0.iter().flatten() {
            // Has no effect on a process that has ended.
            let _ = kill_process(Pid::from_child(child), signal);
        }
    }
}

/// Waits for all processes. After the first failure, the others have some time to report theirs.
fn wait(children: &mut Children, receiver: &Receiver<Event>) -> u8 {
    let mut outcome = Outcome::default();
    let mut deadline = None;
    while children.are_running() {
        let event = match deadline {
            None => receiver.recv().map_err(RecvTimeoutError::from),
            Some(deadline) => receiver.recv_deadline(deadline),
        };
        match event {
            Ok(Event::Ended(process)) => {
                let status = children.wait(process);
                if status.is_some_and(|status| outcome.record(process, &status)) {
                    deadline.get_or_insert(Instant::now() + GRACE);
                }
            }
            Ok(Event::Signalled(number)) => {
                outcome.signalled.get_or_insert(number);
                if let Some(signal) = Signal::from_named_raw(number) {
                    children.signal_all(signal);
                }
                deadline.get_or_insert(Instant::now() + GRACE);
            }
            Err(RecvTimeoutError::Timeout) => {
                outcome.past_deadline = true;
                children.signal_all(Signal::KILL);
                deadline = None;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    outcome.code()
}

/// The combined result of the processes.
#[derive(Debug, Default)]
struct Outcome {
    /// The first exit code of a process that reported an error itself.
    reported: Option<u8>,
    /// Whether a signal has killed a process.
    killed: bool,
    /// Whether this process kills the others.
    past_deadline: bool,
    /// The signal that this process has received.
    signalled: Option<i32>,
}

impl Outcome {
    /// Records the end of a process; returns whether it failed.
    fn record(&mut self, process: usize, status: &std::io::Result<ExitStatus>) -> bool {
        match status {
            Ok(status) if status.success() => return false,
            Ok(status) => match (status.code(), status.signal()) {
                (Some(code), _) => {
                    self.reported
                        .get_or_insert(u8::try_from(code).unwrap_or(exit::LIBRARY));
                }
                (None, signal) => {
                    self.killed = true;
                    if self.signalled.is_none() && !self.past_deadline {
                        console::print_error(format_args!(
                            "process {process} was killed by signal {}",
                            signal.unwrap_or(0)
                        ));
                    } else if self.past_deadline && self.signalled.is_none() {
                        console::print_error(format_args!(
                            "process {process} did not end within {} s of the first failure and was killed",
                            GRACE.as_secs()
                        ));
                    }
                }
            },
            Err(error) => {
                console::print_error(format_args!("waiting for process {process}: {error}"));
                self.killed = true;
            }
        }
        true
    }

    fn code(&self) -> u8 {
        match (self.signalled, self.reported) {
            (Some(signal), _) => u8::try_from(128 + signal).unwrap_or(exit::LIBRARY),
            (None, Some(code)) => code,
            (None, None) if self.killed => exit::LIBRARY,
            (None, None) => 0,
        }
    }
}

fn forward_signals(events: Sender<Event>) -> Result<(), Error> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT])
        .map_err(Error::system("installing signal handlers"))?;
    std::thread::spawn(move || {
        for signal in signals.forever() {
            if events.send(Event::Signalled(signal)).is_err() {
                break;
            }
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(raw: &[i32]) -> u8 {
        let mut outcome = Outcome::default();
        for (process, raw) in raw.iter().enumerate() {
            outcome.record(process, &Ok(ExitStatus::from_raw(*raw)));
        }
        outcome.code()
    }

    #[test]
    fn a_process_that_has_ended_keeps_its_id_until_it_is_waited_for() {
        let (events, receiver) = unbounded();
        let child = Command::new("true").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let mut children = Children(Vec::new());
        children.add(child, 0, events);
        assert!(matches!(receiver.recv(), Ok(Event::Ended(0))));
        rustix::process::test_kill_process(pid).unwrap();
        assert!(children.are_running());
        assert!(children.wait(0).unwrap().unwrap().success());
        assert!(!children.are_running());
    }

    #[test]
    fn the_first_report_wins_over_deaths() {
        // Raw wait statuses: an exit code is shifted by 8 bits, a signal is not.
        assert_eq!(outcome(&[0, 0]), 0);
        assert_eq!(outcome(&[0, 6 << 8]), 6);
        assert_eq!(outcome(&[9, 4 << 8, 3 << 8]), 4);
        assert_eq!(outcome(&[9, 0]), 3);
    }
}
