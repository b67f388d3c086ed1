//! Applies a plan on all nodes, and takes it back on all when one of them fails.

use std::io::{BufRead, IsTerminal};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use spark_ccl_console::{exit, print_error, signals};

use super::args::NetplanArgs;
use super::cables::{View, crossed};
use super::plan::Node;
use crate::error::Error;
use crate::remote::{Answer, Host, Remote, run_on_all};

/// How long a step may take on a node: `netplan apply` takes some seconds.
const LIMIT: Duration = Duration::from_secs(60);

/// What sudo prints if it would need a password: the original, and sudo-rs.
const SUDO_ASKS: [&str; 2] = ["a password is required", "authentication is required"];

pub(super) fn apply(args: &NetplanArgs, nodes: &[Node]) -> Result<u8, Error> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/uuid");
    let all = All {
        remote: args.ssh.remote()?,
        hosts: args.hosts()?,
        nodes,
        id: id
            .map_err(Error::system("naming the trial"))?
            .trim()
            .to_owned(),
        within: args.confirm_within.to_string(),
        events: events()?,
    };
    if let Err(problems) = all.step("look") {
        print_all(&problems, "nothing is changed");
        return Ok(exit::SYSTEM);
    }
    print_error(format_args!(
        "configuring {} nodes; they roll back by themselves in {} s unless it is confirmed",
        nodes.len(),
        args.confirm_within
    ));
    let Err(problems) = all.try_and_keep(args.yes) else {
        print_error(format_args!(
            "done: every node has its file in /etc/netplan"
        ));
        return Ok(0);
    };
    print_all(&problems, "rolling back");
    all.undo();
    Ok(exit::SYSTEM)
}

fn print_all(problems: &[String], last: &str) {
    for problem in problems {
        print_error(format_args!("{problem}"));
    }
    print_error(format_args!("{last}"));
}

/// What may come from outside while nodes try their plan.
enum Event {
    /// A signal that asks this process to end, by its number.
    Signal(i32),
    /// What the user has answered.
    Answer(String),
}

/// A channel for events, of which signals come by themselves. At the second one this process ends
/// at once: nodes roll back by themselves.
fn events() -> Result<(Sender<Event>, Receiver<Event>), Error> {
    let (sender, receiver) = channel();
    let signals = sender.clone();
    let mut is_asked = false;
    signals::forward(move |signal| {
        if is_asked {
            std::process::exit(exit::SYSTEM.into());
        }
        is_asked = true;
        signals.send(Event::Signal(signal)).is_ok()
    })?;
    Ok((sender, receiver))
}

struct All<'a> {
    remote: Remote,
    hosts: Vec<Host>,
    nodes: &'a [Node],
    /// The name of this trial, unlike all others.
    id: String,
    within: String,
    events: (Sender<Event>, Receiver<Event>),
}

impl All<'_> {
    fn try_and_keep(&self, is_confirmed: bool) -> Result<(), Vec<String>> {
        self.step("try")?;
        self.go_on()?;
        print_error(format_args!("looking whether all reach their neighbours"));
        let answers = self.step("check")?;
        let mut views = Vec::new();
        let mut problems = Vec::new();
        for (host, answer) in self.hosts.iter().zip(&answers) {
            match serde_json::from_slice::<View>(answer.json()) {
                Ok(view) => views.push(view),
                Err(error) => problems.push(format!(
                    "{}: its view of its cables is not readable ({error}): it said {:?}",
                    host.name,
                    said(answer)
                )),
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let crossed = crossed(self.nodes, &views);
        if !crossed.is_empty() {
            return Err(crossed);
        }
        if !is_confirmed {
            self.ask()?;
        }
        self.go_on()?;
        // No node commits before all are ready to.
        self.step("keep")?;
        self.go_on()?;
        self.step("commit").map(drop)
    }

    /// Fails if a signal has come.
    fn go_on(&self) -> Result<(), Vec<String>> {
        match self.events.1.try_recv() {
            Ok(Event::Signal(signal)) => Err(interrupted(signal)),
            _ => Ok(()),
        }
    }

    /// Asks the user, if there is one.
    fn ask(&self) -> Result<(), Vec<String>> {
        if !std::io::stdin().is_terminal() {
            return Err(vec![
                "nobody to ask: --yes confirms without a question".to_owned(),
            ]);
        }
        print_error(format_args!(
            "all nodes reach their neighbours. Keep it? [y/N]"
        ));
        let sender = self.events.0.clone();
        // Nothing ends it but the user, or the end of this process.
        std::thread::spawn(move || {
            let mut line = String::new();
            // An input that cannot be read confirms nothing, nor does one that is over.
            let _ = std::io::stdin().lock().read_line(&mut line);
            let _ = sender.send(Event::Answer(line));
        });
        match self.events.1.recv() {
            Ok(Event::Answer(line)) if line.trim().eq_ignore_ascii_case("y") => Ok(()),
            Ok(Event::Signal(signal)) => Err(interrupted(signal)),
            _ => Err(vec!["not confirmed".to_owned()]),
        }
    }

    /// Takes the trial back on all nodes, also where it is committed.
    fn undo(&self) {
        let Err(problems) = self.step("undo") else {
            return;
        };
        print_all(
            &problems,
            "such a node rolls back by itself, unless it had confirmed before another failed",
        );
        print_error(format_args!(
            "to make sure, there: sudo \"$(command -v spark-perf || echo ~/.cargo/bin/spark-perf)\" netplan-agent undo --trial {}",
            self.id
        ));
    }

    /// Does a step on all nodes; returns what they answered, or what went wrong.
    fn step(&self, step: &str) -> Result<Vec<Answer>, Vec<String>> {
        let arguments = [
            "netplan-agent",
            step,
            "--trial",
            &self.id,
            "--within",
            &self.within,
        ];
        let plan = |node: usize| serde_json::to_vec(&self.nodes[node]).unwrap_or_default();
        let answers = run_on_all(&self.remote, &self.hosts, &arguments, plan, LIMIT);
        let mut done = Vec::new();
        let mut problems = Vec::new();
        for (host, answer) in self.hosts.iter().zip(answers) {
            match answer {
                Ok(answer) if answer.status.success() => done.push(answer),
                Ok(answer) => problems.push(format!("{}: {}", host.name, said(&answer))),
                Err(error) => problems.push(error.to_string()),
            }
        }
        if problems.is_empty() {
            Ok(done)
        } else {
            Err(problems)
        }
    }
}

/// A node's own description of its failure.
fn said(answer: &Answer) -> String {
    let all = [&answer.stdout[..], &answer.stderr[..]].concat();
    let text = String::from_utf8_lossy(&all);
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let mut said = lines.join("; ");
    if SUDO_ASKS.iter().any(|words| said.contains(words)) {
        said += "; allow sudo without a password there, or leave out --apply, and on each node run sudo netplan try with its file";
    }
    said
}

fn interrupted(signal: i32) -> Vec<String> {
    vec![format!("interrupted by signal {signal}")]
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
