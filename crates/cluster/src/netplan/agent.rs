//! `spark-perf netplan-agent`: the steps on a node when a plan is applied.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use spark_ccl_console::{exit, print};

use super::cables::View;
use super::look::{self, Connection};
use super::plan::Node;
use super::reach;
use super::trial;
use crate::error::Error;

/// How long an interface may take until it has its address and its neighbours answer.
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
    if args.step != Step::Check && !rustix::process::geteuid().is_root() {
        return by_sudo(args);
    }
    let within = Duration::from_secs(args.within);
    let id = &args.trial;
    match args.step {
        Step::Look => return look(&node()?, args.connection()),
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

impl AgentArgs {
    fn connection(&self) -> Option<String> {
        let given = self.connection.clone();
        given.or_else(|| std::env::var("SSH_CONNECTION").ok())
    }
}

/// The same again as root.
fn by_sudo(args: &AgentArgs) -> Result<u8, Error> {
    let step = format!("{:?}", args.step).to_lowercase();
    let within = args.within.to_string();
    let program = std::env::current_exe().map_err(Error::system("finding this program"))?;
    let mut command = Command::new("sudo");
    command
        .arg("-n")
        .arg(program)
        .args(["netplan-agent", &step, "--trial", &args.trial])
        .args(["--within", &within]);
    if let Some(connection) = args.connection() {
        command.args(["--connection", &connection]);
    }
    let failed = Error::system("sudo, since only root may configure the network");
    Err(failed(command.exec()))
}

fn node() -> Result<Node, Error> {
    let mut text = String::new();
    let read = io::stdin().read_to_string(&mut text);
    let parsed = read.and_then(|_| Ok(serde_json::from_str(&text)?));
    parsed.map_err(Error::system("reading the plan"))
}

/// Prints the reasons not to apply the plan here.
fn look(node: &Node, connection: Option<String>) -> Result<u8, Error> {
    let ssh = connection.and_then(|text| Connection::parse(&text));
    let problems = look::problems(node, ssh).map_err(Error::system("looking at the network"))?;
    if problems.is_empty() {
        return Ok(0);
    }
    print(&(problems.join("\n") + "\n"))?;
    Ok(exit::SYSTEM)
}

/// Waits until the node has its addresses and reaches its neighbours, and prints which these are;
/// or else what is wrong.
fn check(node: &Node) -> Result<u8, Error> {
    let deadline = Instant::now() + SETTLED;
    loop {
        let problems = reach::problems(&node.interfaces);
        if problems.is_empty() {
            if let Some(problem) = reach::narrow(&node.interfaces) {
                print(&(problem + "\n"))?;
                return Ok(exit::LIBRARY);
            }
            let view = serde_json::to_string(&View::new(&node.interfaces));
            let view = view.map_err(|error| Error::system("describing the node")(error.into()))?;
            print(&view)?;
            return Ok(0);
        }
        if Instant::now() >= deadline {
            print(&(problems.join("\n") + "\n"))?;
            return Ok(exit::LIBRARY);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}
