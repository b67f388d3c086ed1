//! `spark-perf netplan-agent`: what is done on a node when a plan is applied.
//!
//! The file is put where it is gone after a restart, and a process is started that takes it away when the time is over.
//! Only when it is kept, it moves to where it lasts. Keeping and taking away begin with a rename, of which only one
//! succeeds.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::FILE;
use super::cables::View;
use super::plan::{Interface, Node};
use crate::error::{Error, exit};

/// Where files of netplan are gone after a restart, and where they last.
const TRIAL: &str = "/run/netplan";
const LASTING: &str = "/etc/netplan";
/// How long an interface may take until it has its address and its neighbours answer.
const SETTLED: Duration = Duration::from_secs(15);
/// How long one attempt to reach a neighbour may take.
const ATTEMPT: Duration = Duration::from_secs(1);

/// The command line of an agent. A node's plan, as JSON, is on standard input.
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "spark-perf netplan-agent", hide = true)]
pub(crate) struct AgentArgs {
    #[arg(value_enum)]
    step: Step,
    /// Seconds until the trial ends by itself
    #[arg(long, default_value_t = 120)]
    within: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Step {
    /// Begin the trial.
    Try,
    /// See whether addresses are there, and neighbours answer.
    Check,
    /// End the trial, and keep the file.
    Keep,
    /// End the trial, and take the file away.
    Undo,
    /// Wait, and take the file away if it is still on trial.
    Guard,
}

/// Does one step.
pub(crate) fn run(args: &AgentArgs) -> Result<u8, Error> {
    if args.step != Step::Check && !rustix::process::geteuid().is_root() {
        return by_sudo(args);
    }
    let within = Duration::from_secs(args.within);
    match args.step {
        Step::Try => begin(&node()?, within),
        Step::Check => return check(&node()?),
        Step::Keep => keep(),
        Step::Undo => undo().map(drop),
        Step::Guard => guard(within),
    }
    .map_err(Error::system("netplan"))?;
    Ok(0)
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
        .args(["netplan-agent", &step, "--within", &within]);
    let failed = command.exec();
    Err(Error::System {
        what: "sudo, since only root may configure the network".to_owned(),
        source: failed,
    })
}

fn node() -> Result<Node, Error> {
    let mut text = String::new();
    let read = io::stdin().read_to_string(&mut text);
    let parsed = read.and_then(|_| Ok(serde_json::from_str(&text)?));
    parsed.map_err(Error::system("reading the plan"))
}

fn begin(node: &Node, within: Duration) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(TRIAL)?;
    write(&trial(), &super::yaml::file(node))?;
    let outcome = start_guard(within).and_then(|()| netplan("apply"));
    if outcome.is_err() {
        undo()?;
    }
    outcome
}

fn trial() -> PathBuf {
    Path::new(TRIAL).join(FILE)
}

/// Writes a file that only root may read, whole or not at all.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    // One that was left half-written.
    let _ = fs::remove_file(&new);
    let mut file = fs::File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)
}

/// Starts the process that ends the trial, out of reach of the connection's end.
fn start_guard(within: Duration) -> io::Result<()> {
    let mut command = Command::new("/proc/self/exe");
    command
        .args([
            "netplan-agent",
            "guard",
            "--within",
            &within.as_secs().to_string(),
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().map(drop)
}

fn guard(within: Duration) -> io::Result<()> {
    rustix::process::setsid()?;
    let deadline = Instant::now() + within;
    while Instant::now() < deadline {
        if !trial().exists() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    undo().map(drop)
}

/// Ends the trial and takes the file away, unless it has ended.
fn undo() -> io::Result<bool> {
    let taken = trial().with_extension("undone");
    match fs::rename(trial(), &taken) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        outcome => outcome?,
    }
    fs::remove_file(taken)?;
    netplan("apply").map(|()| true)
}

fn keep() -> io::Result<()> {
    let kept = trial().with_extension("kept");
    fs::rename(trial(), &kept).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::other("the time was over, and it was rolled back"),
        _ => error,
    })?;
    write(&Path::new(LASTING).join(FILE), &fs::read_to_string(&kept)?)?;
    fs::remove_file(kept)
}

fn netplan(what: &str) -> io::Result<()> {
    let output = Command::new("netplan")
        .arg(what)
        .stdin(Stdio::null())
        .output();
    let output = output
        .map_err(|error| io::Error::new(error.kind(), format!("starting netplan: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!(
        "netplan {what}: {}: {}",
        output.status,
        said.trim()
    )))
}

/// Waits until the node has its addresses and reaches its neighbours, and prints which these are; or else what is wrong.
fn check(node: &Node) -> Result<u8, Error> {
    let deadline = Instant::now() + SETTLED;
    loop {
        let problems: Vec<String> = node.interfaces.iter().flat_map(problems).collect();
        if problems.is_empty() {
            let view = serde_json::to_string(&View::new(&node.interfaces));
            let view = view.map_err(|error| Error::system("describing the node")(error.into()))?;
            return crate::console::print(&view).map(|()| 0);
        }
        if Instant::now() >= deadline {
            crate::console::print(&(problems.join("\n") + "\n"))?;
            return Ok(exit::LIBRARY);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn problems(interface: &Interface) -> Vec<String> {
    let Interface {
        name, address, mtu, ..
    } = interface;
    let addresses = spark_ccl_transport::netif::list().unwrap_or_default();
    if !addresses
        .iter()
        .any(|one| one.name == *name && one.addr == *address)
    {
        return vec![format!("{name} has no address {address}, or no cable")];
    }
    let read = fs::read_to_string(format!("/sys/class/net/{name}/mtu")).unwrap_or_default();
    if read.trim() != mtu.to_string() {
        return vec![format!("{name} has MTU {}, not {mtu}", read.trim())];
    }
    let unreached = interface
        .peers
        .iter()
        .filter(|peer| !answers((peer.address, 22).into()));
    let named = |peer: &super::plan::Peer| {
        let (node, far) = (&peer.node, &peer.interface);
        format!(
            "{name} does not reach {node} ({far}, {}): is the cable between these two?",
            peer.address
        )
    };
    unreached.map(named).collect()
}

/// Whether a host answers, be it with a refusal.
fn answers(address: SocketAddr) -> bool {
    match TcpStream::connect_timeout(&address, ATTEMPT) {
        Ok(_) => true,
        Err(error) => error.kind() == io::ErrorKind::ConnectionRefused,
    }
}
