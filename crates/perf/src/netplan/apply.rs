//! Applies a plan on all nodes, or on none.

use std::io::{BufRead, IsTerminal};
use std::time::Duration;

use super::args::NetplanArgs;
use super::cables::crossed;
use super::plan::Node;
use crate::console;
use crate::error::{Error, exit};
use crate::remote::{Answer, Host, Remote, run_on_all};

/// How long a step may take on a node: `netplan apply` takes some seconds.
const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn apply(args: &NetplanArgs, nodes: &[Node]) -> Result<u8, Error> {
    let all = All {
        remote: args.ssh.remote()?,
        hosts: args.hosts()?,
        nodes,
        within: args.confirm_within.to_string(),
    };
    console::print_error(format_args!(
        "configuring {} nodes; they roll back by themselves in {} s unless it is confirmed",
        nodes.len(),
        args.confirm_within
    ));
    let Err(problems) = all.try_and_keep(args.yes) else {
        console::print_error(format_args!(
            "done: every node has its file in /etc/netplan"
        ));
        return Ok(0);
    };
    for problem in problems {
        console::print_error(format_args!("{problem}"));
    }
    console::print_error(format_args!("rolling back"));
    if let Err(problems) = all.step("undo") {
        for problem in problems {
            console::print_error(format_args!("{problem}; this node rolls back by itself"));
        }
    }
    Ok(exit::SYSTEM)
}

struct All<'a> {
    remote: Remote,
    hosts: Vec<Host>,
    nodes: &'a [Node],
    within: String,
}

impl All<'_> {
    fn try_and_keep(&self, is_confirmed: bool) -> Result<(), Vec<String>> {
        self.step("try")?;
        console::print_error(format_args!("looking whether all reach their neighbours"));
        let views = self.step("check")?;
        let views = views
            .iter()
            .map(|view| serde_json::from_slice(view).unwrap_or_default());
        let crossed = crossed(self.nodes, &views.collect::<Vec<_>>());
        if !crossed.is_empty() {
            return Err(crossed);
        }
        if !is_confirmed {
            ask()?;
        }
        self.step("keep").map(drop)
    }

    /// Does a step on all nodes; returns what they printed, or what went wrong.
    fn step(&self, step: &str) -> Result<Vec<Vec<u8>>, Vec<String>> {
        let arguments = ["netplan-agent", step, "--within", &self.within];
        let plan = |node: usize| serde_json::to_vec(&self.nodes[node]).unwrap_or_default();
        let answers = run_on_all(&self.remote, &self.hosts, &arguments, plan, LIMIT);
        let mut printed = Vec::new();
        let mut problems = Vec::new();
        for (host, answer) in self.hosts.iter().zip(answers) {
            match answer {
                Ok(answer) if answer.status.success() => printed.push(answer.stdout),
                Ok(answer) => problems.push(format!("{}: {}", host.name, said(&answer))),
                Err(error) => problems.push(error.to_string()),
            }
        }
        if problems.is_empty() {
            Ok(printed)
        } else {
            Err(problems)
        }
    }
}

/// What a node has said of its failure.
fn said(answer: &Answer) -> String {
    let all = [&answer.stdout[..], &answer.stderr[..]].concat();
    let text = String::from_utf8_lossy(&all);
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    lines.join("; ")
}

/// Asks the user, if there is one.
fn ask() -> Result<(), Vec<String>> {
    if !std::io::stdin().is_terminal() {
        return Err(vec![
            "nobody to ask: --yes confirms without a question".to_owned(),
        ]);
    }
    console::print_error(format_args!(
        "all nodes reach their neighbours. Keep it? [y/N]"
    ));
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    if read.is_ok() && line.trim().eq_ignore_ascii_case("y") {
        return Ok(());
    }
    Err(vec!["not confirmed".to_owned()])
}
