//! `spark-perf doctor`: what is wrong with hosts and what joins them, and what puts it right.
//!
//! Checks are pure functions from models of hosts to findings, so that each is tested with hosts that have a fault.

mod checks;
mod finding;

use clap::Parser;
use spark_ccl_topology::{Cluster, Host};

use crate::console::print;
use crate::error::{Error, exit};
use crate::survey::{SurveyArgs, Surveyed, Unreached, survey_each};
use checks::Subject;
use finding::{Finding, Problem, Status};

const AFTER_HELP: &str = "\
What it prints:
  A line for each check of each host, of each pair of hosts with a cable between them, and of all hosts together: ok, warn
  (it works, but slowly or not for long) or FAIL (it does not work); what is there; and where that is not as it should be,
  what is wanted, why it matters, and the command that puts it right.
  Other hosts are asked over ssh (-H), or described by files that `spark-perf topo --json` makes on each of them (--from). The
  limit on locked memory and others are those of the shell in which that ran.

What it cannot see: firewalls, and what only traffic shows. spark-perf rdma_bw measures what cables carry.

Exit codes:
  0 nothing fails (there may be warnings)     1 something fails
  2 a host cannot be read                     6 bad arguments

Examples:
  spark-perf doctor                                        this host
  spark-perf doctor -H spark-1,spark-2                     two hosts, and the cable between them
  spark-perf doctor --from spark-1.json,spark-2.json       the same by what was written down
  spark-perf doctor --quiet --json                         only what is wrong, for programs";

/// Finds what is wrong with hosts and with what joins them.
#[derive(Debug, Clone, Parser)]
#[command(name = "spark-perf doctor", after_long_help = AFTER_HELP, after_help = "More with --help.")]
pub(crate) struct Args {
    #[command(flatten)]
    hosts: SurveyArgs,
    /// Print the findings as a JSON list
    #[arg(long)]
    json: bool,
    /// Print only what is wrong
    #[arg(short, long)]
    quiet: bool,
}

/// Prints the findings; returns the exit code.
pub(crate) fn run(args: &Args) -> Result<u8, Error> {
    let found = examine(survey_each(&args.hosts)?);
    let shown = found
        .iter()
        .filter(|one| !args.quiet || one.status > Status::Ok);
    let text = if args.json {
        let shown: Vec<_> = shown.collect();
        // Cannot fail: JSON can represent every field.
        format!(
            "{}\n",
            serde_json::to_string_pretty(&shown).unwrap_or_default()
        )
    } else {
        let mut lines: Vec<_> = shown.map(ToString::to_string).collect();
        lines.push(summary(&found));
        format!("{}\n", lines.join("\n"))
    };
    print(&text)?;
    let fails = found.iter().any(|one| one.status == Status::Fail);
    Ok(if fails { exit::UNSOUND } else { 0 })
}

/// All findings about these hosts; those that do not answer come first.
fn examine(surveyed: Vec<Result<Surveyed, Unreached>>) -> Vec<Finding> {
    let mut found = Vec::new();
    let (mut hosts, mut clocks): (Vec<Host>, Vec<_>) = (Vec::new(), Vec::new());
    for one in surveyed {
        match one {
            Ok(one) => {
                hosts.push(one.host);
                clocks.push(one.clock_ahead);
            }
            Err(one) => found.push(unreached(&one)),
        }
    }
    found.extend(checks::all(&Subject {
        cluster: &Cluster::of(&hosts),
        clocks: &clocks,
    }));
    found
}

fn unreached(one: &Unreached) -> Finding {
    Finding::fail(
        "host.ssh",
        &[&one.name],
        Problem {
            seen: one.error.to_string(),
            wanted: "ssh without a password, and spark-perf there".to_owned(),
            why: "what this host has is not known, and launch cannot start ranks there".to_owned(),
            fix: format!("ssh-copy-id {0}; ssh {0} spark-perf topo", one.name),
        },
    )
}

fn summary(found: &[Finding]) -> String {
    let count = |status: Status| found.iter().filter(|one| one.status == status).count();
    let [ok, warn, fail] = [Status::Ok, Status::Warn, Status::Fail].map(count);
    format!("# {ok} ok, {warn} to look at, {fail} that fail")
}
