//! Applies a plan on all nodes, and takes it back on all when one of them fails.

use std::io::{BufRead, IsTerminal, stdin};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use spark_ccl_console::{exit, print_error, signals};

use super::args::NetplanArgs;
use super::cables::{View, crossed};
use super::plan::Node;
use crate::error::Error;
use crate::remote::{Answer, Host, Remote, run_on_all};

/// The time limit of a step on a node: `netplan apply` takes some seconds.
const LIMIT: Duration = Duration::from_secs(60);
/// The words of a sudo that would need a password: the original, and sudo-rs.
const SUDO_ASKS: [&str; 2] = ["a password is required", "authentication is required"];

/// The signal that has asked this process to end, or 0. Relaxed: it orders no other memory.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

pub(super) fn apply(args: &NetplanArgs, nodes: &[Node]) -> Result<u8, Error> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/uuid");
    let id = id.map_err(Error::system("naming the trial"))?;
    let within = args.confirm_within;
    let trial = Trial {
        remote: args.ssh.remote()?,
        hosts: args.hosts()?,
        nodes,
        arguments: format!("--trial {} --within {within}", id.trim()),
    };
    signals::forward(|signal| {
        // At the second one this process ends at once: nodes roll back by themselves.
        if SIGNAL.swap(signal, Relaxed) != 0 {
            std::process::exit(exit::SYSTEM.into());
        }
        true
    })?;
    if let Err(problems) = trial.step("look") {
        say(&format!("{problems}\nnothing is changed"));
        return Ok(exit::SYSTEM);
    }
    let (count, until) = (nodes.len(), "unless it is confirmed");
    say(&format!(
        "configuring {count} nodes; they roll back by themselves in {within} s {until}"
    ));
    if let Err(problems) = trial.try_and_keep(args.yes) {
        say(&format!("{problems}\nrolling back"));
        trial.undo();
        return Ok(exit::SYSTEM);
    }
    say("done: every node has its file in /etc/netplan");
    Ok(0)
}

/// Prints lines.
fn say(text: &str) {
    for line in text.lines() {
        print_error(format_args!("{line}"));
    }
}

/// A trial on all nodes. Its steps fail with a problem on each line.
struct Trial<'a> {
    remote: Remote,
    hosts: Vec<Host>,
    nodes: &'a [Node],
    /// The agents' arguments after the step: a name unlike all others, and a time.
    arguments: String,
}

impl Trial<'_> {
    fn try_and_keep(&self, is_confirmed: bool) -> Result<(), String> {
        self.step("try")?;
        say("looking whether all reach their neighbours");
        let answers = self.step("check")?;
        let views: Result<Vec<_>, _> = self.hosts.iter().zip(&answers).map(view).collect();
        let crossed = crossed(self.nodes, &views?);
        if !crossed.is_empty() {
            return Err(crossed.join("\n"));
        }
        if !is_confirmed {
            ask()?;
        }
        // No node commits before all are ready to.
        self.step("keep")?;
        self.step("commit").map(drop)
    }

    /// Takes the trial back on all nodes, also where it is committed.
    fn undo(&self) {
        if let Err(problems) = self.step("undo") {
            say(&format!(
                "{problems}\n\
                 such a node rolls back by itself, unless it had confirmed before another failed\n\
                 to make sure, there: sudo \"$(command -v spark-perf || \
                 echo ~/.cargo/bin/spark-perf)\" netplan-agent undo {}",
                self.arguments
            ));
        }
    }

    /// Does a step on all nodes; returns their answers, or the problems. After a signal, only
    /// `undo` is done.
    fn step(&self, step: &str) -> Result<Vec<Answer>, String> {
        if step != "undo" {
            go_on()?;
        }
        let words = self.arguments.split_whitespace();
        let words: Vec<&str> = ["netplan-agent", step].into_iter().chain(words).collect();
        let plan = |node: usize| serde_json::to_vec(&self.nodes[node]).unwrap_or_default();
        let answers = run_on_all(&self.remote, &self.hosts, &words, plan, LIMIT);
        let (mut done, mut problems) = (Vec::new(), Vec::new());
        for (host, answer) in self.hosts.iter().zip(answers) {
            match answer {
                Ok(answer) if answer.status.success() => done.push(answer),
                Ok(answer) => problems.push(format!("{}: {}", host.name, said(&answer))),
                Err(error) => problems.push(error.to_string()),
            }
        }
        match problems.join("\n") {
            none if none.is_empty() => Ok(done),
            problems => Err(problems),
        }
    }
}

/// Fails if a signal has come.
fn go_on() -> Result<(), String> {
    match SIGNAL.load(Relaxed) {
        0 => Ok(()),
        signal => Err(format!("interrupted by signal {signal}")),
    }
}

/// Asks the user, if there is one.
fn ask() -> Result<(), String> {
    if !stdin().is_terminal() {
        return Err("nobody to ask: --yes confirms without a question".to_owned());
    }
    say("all nodes reach their neighbours. Keep it? [y/N]");
    let now = Some(&Timespec::default());
    while let Ok(0) | Err(Errno::INTR) = poll(&mut [PollFd::new(&stdin(), PollFlags::IN)], now) {
        go_on()?;
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut answer = String::new();
    // An input that cannot be read confirms nothing, nor does one that is over.
    let _ = stdin().lock().read_line(&mut answer);
    let is_confirmed = answer.trim().eq_ignore_ascii_case("y");
    is_confirmed.then_some(()).ok_or("not confirmed".to_owned())
}

/// A node's view of its cables.
fn view((host, answer): (&Host, &Answer)) -> Result<View, String> {
    let why = |error| {
        format!(
            "{}: its view of its cables: {error}: {}",
            host.name,
            said(answer)
        )
    };
    serde_json::from_slice(answer.json()).map_err(why)
}

/// A node's own description of its failure.
fn said(answer: &Answer) -> String {
    let mut said = answer.lines().join("; ");
    if SUDO_ASKS.iter().any(|words| said.contains(words)) {
        said += "; allow sudo without a password there, or leave out --apply, and on each node \
                 run sudo netplan try with its file";
    }
    said
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    #[test]
    fn a_sudo_that_asks_has_a_remedy() {
        let said = |text: &str| {
            said(&Answer {
                status: ExitStatus::from_raw(1 << 8),
                stdout: Vec::new(),
                stderr: text.as_bytes().to_vec(),
                times: [std::time::UNIX_EPOCH; 2],
            })
        };
        let text = said("sudo: a password is required\n");
        assert!(text.contains("leave out --apply"), "{text}");
        assert_eq!(said("one\n\n two\n"), "one; two");
    }
}
