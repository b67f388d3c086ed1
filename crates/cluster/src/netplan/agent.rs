//! `spark-perf netplan-agent`: the steps on a node when a plan is applied.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use spark_ccl_console::{exit, print};

use super::cables::View;
use super::plan::Node;
use super::{look, reach, trial};
use crate::error::Error;

/// The time limit for an interface to have its address, and for its neighbours to answer.
const SETTLED: Duration = Duration::from_secs(15);

/// The command line of an agent. A node's plan, as JSON, is on standard input.
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "spark-perf netplan-agent", hide = true)]
pub(crate) struct AgentArgs {
    #[arg(value_enum)]
    step: Step,
    /// The name of the trial
    #[arg(long)]
    trial: String,
    /// Seconds until the trial ends by itself
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u64).range(..=3600))]
    within: u64,
    /// The connection by ssh [default: `SSH_CONNECTION`, which sudo takes out of the environment]
    #[arg(long)]
    connection: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Step {
    /// See whether the plan would take away networks that are in use.
    Look,
    /// Begin the trial.
    Try,
    /// See whether addresses are there, and neighbours answer.
    Check,
    /// Make ready for the file to last.
    Keep,
    /// End the trial, and let the file last.
    Commit,
    /// End the trial, and make all as it was.
    Undo,
    /// Wait, and undo the trial if it has not ended.
    Guard,
}

/// Does one step.
pub(crate) fn run(args: &AgentArgs) -> Result<u8, Error> {
    let given = args.connection.clone();
    let ssh = given.or_else(|| std::env::var("SSH_CONNECTION").ok());
    if args.step != Step::Check && !rustix::process::geteuid().is_root() {
        return by_sudo(ssh.filter(|_| args.connection.is_none()));
    }
    let (id, within) = (&args.trial, Duration::from_secs(args.within));
    match args.step {
        Step::Look => {
            let problems = look::problems(&node()?, ssh.and_then(|ssh| crate::remote::ends(&ssh)));
            return refuse(&problems.map_err(Error::system("looking at the network"))?);
        }
        Step::Check => return check(&node()?),
        Step::Try => trial::begin(node()?, id, within),
        Step::Keep => trial::keep(id),
        Step::Commit => trial::commit(id),
        Step::Undo => trial::undo(id),
        Step::Guard => trial::guard(id, within),
    }
    .map_err(Error::system("netplan"))?;
    Ok(0)
}

/// Runs the same step as root, with this connection as a further argument.
fn by_sudo(ssh: Option<String>) -> Result<u8, Error> {
    let program = std::env::current_exe().map_err(Error::system("finding this program"))?;
    let words = std::env::args_os().skip(1);
    let mut command = Command::new("sudo");
    command.arg("-n").arg(program).args(words);
    command.args(ssh.map(|ssh| format!("--connection={ssh}")));
    let failed = Error::system("sudo, since only root may configure the network");
    Err(failed(command.exec()))
}

fn node() -> Result<Node, Error> {
    serde_json::from_reader(io::stdin()).map_err(Error::system("reading the plan"))
}

/// Prints the reasons against the plan here, if there are any.
fn refuse(problems: &[String]) -> Result<u8, Error> {
    if problems.is_empty() {
        return Ok(0);
    }
    print(&(problems.join("\n") + "\n"))?;
    Ok(exit::SYSTEM)
}

/// Waits until the node has its addresses and reaches its neighbours, and prints these, or else the
/// problems.
fn check(node: &Node) -> Result<u8, Error> {
    let deadline = Instant::now() + SETTLED;
    let mut problems = reach::problems(&node.interfaces);
    while !problems.is_empty() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(200));
        problems = reach::problems(&node.interfaces);
    }
    if problems.is_empty() {
        problems = reach::narrow(&node.interfaces);
    }
    if problems.is_empty() {
        let view = serde_json::to_string(&View::new(&node.interfaces));
        print(&view.map_err(Error::system("describing the node"))?)?;
    }
    refuse(&problems)
}
