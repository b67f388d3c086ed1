//! The connection to the agent of a host.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use spark_ccl_console::tether;

use super::printer::Line;
use super::wire::{Hello, Order, RankReport};
use crate::remote::{self, Host, Remote};

/// Longer than any report: a line of a rank comes in parts of 64 KiB.
const LONGEST_REPORT: u64 = 128 << 10;
/// The most bytes that are kept of the standard error of ssh or the agent.
const MOST_ERRORS: usize = 64 << 10;
/// How long a process may take to end once it has closed its output.
const END: Duration = Duration::from_secs(2);
/// How long its standard error may come after that.
const ERRORS: Duration = Duration::from_millis(500);

/// A connection's report about its host, which is named by its number.
pub(super) enum Event {
    Hello(usize, Box<Hello>),
    RankReport(usize, RankReport),
    /// It says something that no agent says.
    Nonsense(usize),
    /// Its output has ended; this was on standard error.
    Closed(usize, Vec<u8>),
    /// The ranks' output cannot be written.
    NotPrinted(std::io::Error),
    /// All output of the ranks is written; no connection to an agent is open.
    Printed,
    /// This process is asked to end.
    Signalled(i32),
}

/// The channels to which the threads of connections send.
#[derive(Clone)]
pub(super) struct Senders {
    pub(super) events: Sender<Event>,
    /// Blocks while nobody reads the ranks' output.
    pub(super) lines: SyncSender<Line>,
}

/// A connection to a host's agent. When it is dropped, the agent ends its ranks.
pub(super) struct Link {
    pub(super) host: Host,
    agent: Child,
    /// Dropped to have the ranks end.
    orders: Option<Sender<Order>>,
}

impl Link {
    /// Starts the agent of a host, and sends it a sign of life every `beat`. Its reports go to
    /// `senders`, with the host's number; lines have the numbers of their ranks, which begin with
    /// the given one. The calling thread must not end before the link.
    pub(super) fn open(
        remote: &Remote,
        host: &Host,
        (number, first): (usize, usize),
        senders: &Senders,
        beat: Duration,
    ) -> Result<Self, remote::Error> {
        let mut command = remote.command(host, &["launch-agent"]);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C is for the launcher, which ends the ranks in order.
            .process_group(0);
        if !host.is_here {
            // The agent of this host notices by itself, and ends its ranks before it ends.
            tether::ends_with_this_thread(&mut command, Signal::KILL);
        }
        let spawned = command.spawn();
        let mut agent = spawned.map_err(|source| remote.not_started(host, source))?;
        let (orders, receiver) = channel();
        if let Some(stdin) = agent.stdin.take() {
            std::thread::spawn(move || speak(stdin, &receiver, beat));
        }
        let (stdout, stderr) = (agent.stdout.take(), agent.stderr.take());
        let senders = senders.clone();
        std::thread::spawn(move || read_agent((number, first), stdout, stderr, &senders));
        Ok(Self {
            host: host.clone(),
            agent,
            orders: Some(orders),
        })
    }

    pub(super) fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // The reading thread reports a host that is gone.
            let _ = orders.send(order);
        }
    }

    /// Makes the agent end the ranks.
    pub(super) fn stop(&mut self) {
        self.orders = None;
    }

    /// The status of the process, which has closed its output.
    pub(super) fn close(&mut self) -> std::io::Result<ExitStatus> {
        let deadline = Instant::now() + END;
        while Instant::now() < deadline {
            if let Some(status) = self.agent.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.agent.kill()?;
        self.agent.wait()
    }

    /// Cuts the connection to a host that is not heard of. Its agent ends the ranks as soon as it
    /// notices.
    pub(super) fn cut(&mut self) {
        self.stop();
        // It may have ended just now.
        let _ = self.agent.kill();
        let _ = self.agent.wait();
    }
}

/// Writes the order, and a sign of life now and then, until the link wants an end or the host is
/// gone.
fn speak(mut stdin: ChildStdin, orders: &Receiver<Order>, beat: Duration) {
    loop {
        let line = match orders.recv_timeout(beat) {
            Ok(order) => order.encode(),
            Err(RecvTimeoutError::Timeout) => b"\n".to_vec(),
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if stdin.write_all(&line).is_err() {
            return;
        }
    }
}

/// Passes on the agent's reports. The receivers are there until the job is over.
fn read_agent(
    (number, first): (usize, usize),
    stdout: Option<impl Read>,
    stderr: Option<impl Read + Send + 'static>,
    senders: &Senders,
) {
    let (parts, errors) = channel();
    std::thread::spawn(move || read_some(stderr, &parts));
    let mut stdout = stdout.map(BufReader::new);
    let mut is_greeted = false;
    while let Some(line) = stdout.as_mut().and_then(next_line) {
        let event = match Hello::decode(&line) {
            Some(hello) if !is_greeted => {
                is_greeted = true;
                Event::Hello(number, Box::new(hello))
            }
            // A shell may print something as it starts.
            _ if !is_greeted => continue,
            _ => match RankReport::decode(&line) {
                Some(RankReport::Line(local, stream, text)) => {
                    let rank = first.saturating_add(local);
                    let line = Line { rank, stream, text };
                    if senders.lines.send(line).is_err() {
                        return;
                    }
                    continue;
                }
                Some(report) => Event::RankReport(number, report),
                None => Event::Nonsense(number),
            },
        };
        if senders.events.send(event).is_err() {
            return;
        }
    }
    let _ = senders.events.send(Event::Closed(number, said_in(&errors)));
}

/// A line without its end.
fn next_line(input: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    let read = input.take(LONGEST_REPORT).read_until(b'\n', &mut line);
    if !matches!(read, Ok(1..)) {
        return None;
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    Some(line)
}

/// Reads all, and passes the beginning on.
fn read_some(pipe: Option<impl Read>, parts: &Sender<Vec<u8>>) {
    let Some(mut pipe) = pipe else { return };
    let (mut bytes, mut left) = ([0; 4096], MOST_ERRORS);
    loop {
        let read = match pipe.read(&mut bytes) {
            Ok(read @ 1..) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            _ => return,
        };
        let kept = read.min(left);
        left -= kept;
        if kept > 0 {
            let _ = parts.send(bytes[..kept].to_vec());
        }
    }
}

/// What has come until the pipe ends. An ssh that stays behind for later connections
/// (`ControlPersist`) keeps it open.
fn said_in(parts: &Receiver<Vec<u8>>) -> Vec<u8> {
    let deadline = Instant::now() + ERRORS;
    let mut said = Vec::new();
    while let Ok(part) = parts.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        said.extend(part);
    }
    said
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn an_agent_is_gone_although_another_process_keeps_its_standard_error() {
        let (mut kept, stderr) = UnixStream::pair().unwrap();
        kept.write_all(b"no route").unwrap();
        let (events, received) = channel();
        let (lines, _printed) = sync_channel(1);
        let senders = Senders { events, lines };
        read_agent((3, 0), Some(&b""[..]), Some(stderr), &senders);
        let Ok(Event::Closed(3, said)) = received.try_recv() else {
            panic!("another event, or none");
        };
        assert_eq!(said, b"no route");
        drop(kept);
    }
}
