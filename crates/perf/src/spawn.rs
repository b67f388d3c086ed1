//! Starts a command as each of several local ranks, and ends with the first that fails.
//!
//! They share this process's output. When a rank fails, the others have some time to report that,
//! and are killed. Signals are passed on. The ranks die with this process, however that ends.
//!
//! Knows how a process learns its rank (`spark_ccl::rank_variables`). Must not know what the
//! command does.

mod cores;
mod outcome;

use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use outcome::Outcome;
use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use spark_ccl::{UniqueId, rank_variables};
use spark_ccl_console::{signals, tether};

use crate::error::Error;

/// The time for the other processes to report their errors after the first has failed.
const GRACE: Duration = Duration::from_secs(3);

enum Event {
    Ended(usize),
    Signalled(i32),
}

/// Runs `command` as `size` ranks, which connect through `id`, and waits for them; returns the exit
/// code for all. This process must serve the id, and the calling thread must have no other work,
/// since the ranks die with it.
pub(crate) fn run(size: usize, id: &UniqueId, command: impl Fn() -> Command) -> Result<u8, Error> {
    let (events, receiver) = channel();
    let signalled = events.clone();
    signals::forward(move |number| signalled.send(Event::Signalled(number)).is_ok())?;
    let mut children = Children(Vec::new());
    for rank in 0..size {
        let mut command = command();
        command
            .envs(rank_variables(id, rank, size))
            .stdin(Stdio::null());
        tether::ends_with_this_thread(&mut command, Signal::KILL);
        match command.spawn() {
            Ok(child) => {
                cores::bind(Pid::from_child(&child), rank, size);
                children.add(child, rank, events.clone());
            }
            Err(error) => {
                children.signal_all(Signal::KILL);
                return Err(Error::system(format!("starting process {rank}"))(error));
            }
        }
    }
    Ok(wait(&mut children, &receiver))
}

/// The started processes, by index; `None` once they have been waited for.
struct Children(Vec<Option<Child>>);

impl Children {
    fn add(&mut self, child: Child, process: usize, events: Sender<Event>) {
        let pid = Pid::from_child(&child);
        self.0.push(Some(child));
        std::thread::spawn(move || {
            // The process keeps its id until `wait`, so no other process gets a signal that is
            // meant for it.
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
    let mut deadline: Option<Instant> = None;
    while children.are_running() {
        let event = match deadline {
            None => receiver.recv().map_err(RecvTimeoutError::from),
            Some(deadline) => {
                receiver.recv_timeout(deadline.saturating_duration_since(Instant::now()))
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_has_ended_keeps_its_id_until_it_is_waited_for() {
        let (events, receiver) = channel();
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
}
