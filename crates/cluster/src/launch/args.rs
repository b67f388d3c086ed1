//! The command line of `spark-perf launch`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use super::kubernetes::KubernetesArgs;
use crate::error::Error;
use crate::remote::{Host, HostArgs, both_here, parse_list};

const AFTER_HELP: &str = "\
What it does:
  Starts COMMAND once for each slot of each host: on other hosts over ssh, which
  must need no password, and there by spark-perf, which must be there; on this
  host without ssh. No rank starts before all hosts have answered. Each line
  that a rank prints comes with its number before it.
  When a rank fails, all others are told to end (SIGTERM), and killed when the
  grace time is over, with all processes that they have started. That also
  happens when the launcher, or its connection to a host, ends in any way: by
  Ctrl-C or kill -9 at once, when the network is gone or the launcher is stopped
  (Ctrl-Z), after a minute (--lost-after).

Variables of the ranks:
  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, NODE_RANK, GROUP_RANK,
  GROUP_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun has them, with a
  port that is free on rank 0's host; SPARK_CCL_RANK and its kin, with a port
  and a secret of their own, which is never part of a command line. All NCCL_*
  and SPARK_CCL_* variables of the launcher are passed on, and those of -x.
  Between several hosts, GLOO_SOCKET_IFNAME is the interface that the hosts
  reach each other by, unless it is set: PyTorch's gloo would use that of the
  host's name, which often is the loopback interface.

Without ssh:
  The same command on every node, by any other means: launch --node-of
  spark-a,spark-b -- COMMAND. Each node finds itself in the list by its names
  and addresses, and starts its own ranks. The first node is MASTER_ADDR; it
  must have the ports --master-port and the next free. Programs that use this
  library need the same SPARK_CCL_SECRET on all nodes.

Exit codes:
  that of the first rank that failed; 128 and the number of the signal that
  killed it, or the launcher
  2 a host cannot be reached, or has vanished      6 bad arguments

Examples:
  spark-perf launch -H spark-a,spark-b -- spark-perf all_reduce -b 8 -e 1G -f 2
  spark-perf launch -H spark-a:2,spark-b:2 -x PATH -- python train.py
  spark-perf launch --local 4 -- ./program
  spark-perf launch --kubernetes --image registry/train:1 --nodes 2 \\
    -- python train.py | kubectl apply -f -";

/// Starts a program as ranks on several hosts.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "spark-perf launch",
    after_long_help = AFTER_HELP,
    after_help = "More with --help."
)]
pub(crate) struct LaunchArgs {
    #[command(flatten)]
    pub(super) hosts: HostArgs,
    /// N ranks on this host
    #[arg(long, value_name = "N", conflicts_with_all = ["list", "hostfile", "node_of"], help_heading = "Hosts")]
    local: Option<usize>,
    /// This host, and those that spark-perf discover finds
    #[arg(long = "hosts", value_enum, value_name = "WHICH", conflicts_with_all = ["list", "hostfile", "local", "node_of"], help_heading = "Hosts")]
    found: Option<Source>,
    /// This node's ranks only; the same list on every node
    #[arg(long, value_name = "HOST[:SLOTS],..", conflicts_with_all = ["list", "hostfile"], help_heading = "Hosts")]
    pub(super) node_of: Option<String>,

    /// The address of the first host for the others [default: the one that ssh uses]
    #[arg(long, value_name = "ADDRESS", help_heading = "Ranks")]
    pub(super) master_addr: Option<String>,
    /// `MASTER_PORT`; this library uses the next [default: any free ones; with --node-of 29500]
    #[arg(long, value_name = "PORT", help_heading = "Ranks", value_parser = clap::value_parser!(u16).range(1..65535))]
    pub(super) master_port: Option<u16>,
    /// Pass this variable on, or set it; may come more than once
    #[arg(
        short = 'x',
        long = "env",
        value_name = "NAME[=VALUE]",
        help_heading = "Ranks"
    )]
    pub(super) env: Vec<String>,
    /// The folder to start in, on every host [default: this one]
    #[arg(long, value_name = "FOLDER", help_heading = "Ranks")]
    pub(super) chdir: Option<PathBuf>,
    /// Seconds that ranks have to end after SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, value_parser = seconds, help_heading = "Ranks")]
    pub(super) grace: f64,
    /// Seconds without a sign of life from the launcher after which a host ends its ranks
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = some_seconds, help_heading = "Hosts")]
    pub(super) lost_after: f64,
    /// Seconds until all hosts must have answered [default: 30; in pods, which may have to fetch
    /// their image, 600]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, help_heading = "Hosts")]
    connect_timeout: Option<f64>,
    /// Print lines without the rank before them
    #[arg(long, help_heading = "Ranks")]
    pub(super) no_prefix: bool,

    #[command(flatten)]
    pub(super) kubernetes: KubernetesArgs,

    /// What to run
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub(super) command: Vec<String>,
}

/// `--hosts`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Source {
    Discovered,
}

impl LaunchArgs {
    pub(super) fn connect_timeout(&self) -> Duration {
        let default = if self.kubernetes.kubernetes {
            600.0
        } else {
            30.0
        };
        Duration::from_secs_f64(self.connect_timeout.unwrap_or(default))
    }

    /// How often the launcher gives a sign of life: several times within the time after which a
    /// host would miss it.
    pub(super) fn beat(&self) -> Duration {
        Duration::from_secs_f64((self.lost_after / 6.0).clamp(0.05, 5.0))
    }

    /// All hosts of the ranks.
    pub(super) fn all_hosts(&self) -> Result<Vec<Host>, Error> {
        if let Some(slots) = self.local {
            return self::local(slots);
        }
        let hosts = match &self.node_of {
            None if self.found.is_some() => crate::discover::hosts(&self.hosts.ssh.remote()?)?,
            None => self.hosts.hosts()?,
            Some(list) => {
                let parsed = parse_list(list);
                crate::remote::settled(
                    parsed.map_err(|why| Error::usage(format!("--node-of {list}: {why}")))?,
                )
            }
        };
        if hosts.is_empty() {
            let why = "no hosts: name them with -H or --hostfile, or use --local N";
            return Err(Error::usage(why.to_owned()));
        }
        // Another node would number them otherwise, so --node-of has its own words for it.
        match both_here(&hosts).filter(|_| self.node_of.is_none()) {
            None => Ok(hosts),
            Some([one, other]) => Err(Error::usage(format!(
                "{one} and {other} are both this host: name it once, with the number of its ranks, \
                 as in localhost:2"
            ))),
        }
    }
}

fn local(slots: usize) -> Result<Vec<Host>, Error> {
    let list = parse_list(&format!("localhost:{slots}"));
    let mut hosts = list.map_err(|why| Error::usage(format!("--local: {why}")))?;
    for host in &mut hosts {
        host.is_here = true;
    }
    Ok(hosts)
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok();
    seconds
        .filter(|seconds| (0.0..=86_400.0).contains(seconds))
        .ok_or_else(|| "expected seconds, from 0 to 86400".to_owned())
}

fn some_seconds(text: &str) -> Result<f64, String> {
    let enough = seconds(text).ok().filter(|&seconds| seconds >= 1.0);
    enough.ok_or_else(|| "expected seconds, from 1 to 86400".to_owned())
}
