//! The command line of `spark-perf netplan`.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use clap::Parser;

use super::plan::{Layout, Topology};
use crate::error::Error;
use crate::remote::{Host, SshArgs, parse_list, settled};

const AFTER_HELP: &str = "\
What it does:
  Prints a file of netplan for each node: addresses of its own for each
  interface of each cable, in a subnet for each, and the MTU. Nothing is changed
  without --apply.
  One cage of a Spark is two interfaces, each with half of the bandwidth; so a
  cable has two subnets. In a ring, the first cage of each node is cabled to the
  second cage of the next.

--apply:
  Needs ssh to the nodes without a password, spark-perf there, and root there,
  or sudo without a password. Nothing is changed if the plan overlaps other
  networks of a node, or takes an interface that ssh, the default route or
  another file of netplan uses. Each node gets its file in /run/netplan, and
  applies it. If all have their addresses and reach their neighbours, and it is
  confirmed, the files move to /etc/netplan (90-spark-ccl.yaml); if that fails
  on a node, all that can be reached take it back. Without the confirmation each
  node becomes what it was by itself after --confirm-within, also if it cannot
  be reached any more; a restart does so, too.

Exit codes:
  0 success     6 bad arguments
  2 not applied, or rolled back: a node cannot be reached, or does not reach a
    neighbour

Examples:
  spark-perf netplan --topology direct --nodes spark-a,spark-b --output plan
  spark-perf netplan --topology ring --nodes spark-a,spark-b,spark-c --apply
  spark-perf netplan --topology switch --nodes a,b,c --json \\
    --interfaces enp1s0f1np1+enP2p1s0f1np1";

/// Plans the addresses of the fast network, and applies them on demand.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "spark-perf netplan",
    after_long_help = AFTER_HELP,
    after_help = "More with --help."
)]
pub(crate) struct NetplanArgs {
    /// How the nodes are cabled
    #[arg(long, value_enum)]
    topology: Topology,
    /// The nodes, as ssh knows them, in the order of the ring
    #[arg(long, value_name = "NODE,..")]
    nodes: String,
    /// The interfaces of each cage: twins joined by +, cages by commas; the same on all nodes
    #[arg(
        long,
        value_name = "NAME+NAME,..",
        default_value = "enp1s0f0np0+enP2p1s0f0np0,enp1s0f1np1+enP2p1s0f1np1"
    )]
    interfaces: String,
    /// Cables between two nodes, or from each node to the switch; a ring has one
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    cables: u8,
    /// The first subnet, of 256 addresses; the others follow
    #[arg(long, value_name = "ADDRESS", default_value = "192.168.100.0")]
    base: Ipv4Addr,
    /// The MTU of all interfaces
    #[arg(long, value_name = "BYTES", default_value_t = 9000, value_parser = clap::value_parser!(u16).range(1280..=9978))]
    mtu: u16,
    /// Print JSON instead of YAML
    #[arg(long)]
    pub(super) json: bool,
    /// Write NODE.yaml for each node into this folder, instead of printing
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["json", "apply"])]
    pub(super) output: Option<PathBuf>,

    /// Configure the nodes, and roll that back unless it is confirmed
    #[arg(long, help_heading = "Apply")]
    pub(super) apply: bool,
    /// Confirm without a question, if all nodes reach each other
    #[arg(long, requires = "apply", help_heading = "Apply")]
    pub(super) yes: bool,
    /// Seconds until nodes roll back by themselves
    #[arg(
        long, value_name = "SECONDS", default_value_t = 120, help_heading = "Apply",
        value_parser = clap::value_parser!(u64).range(5..=3600)
    )]
    pub(super) confirm_within: u64,
    #[command(flatten)]
    pub(super) ssh: SshArgs,
}

impl NetplanArgs {
    pub(super) fn layout(&self) -> Result<Layout, Error> {
        let cages = self.interfaces.split(',');
        let twins = |cage: &str| cage.split('+').map(|name| name.trim().to_owned()).collect();
        Ok(Layout {
            topology: self.topology,
            nodes: self.parsed()?.into_iter().map(|host| host.name).collect(),
            cages: cages.map(twins).collect(),
            cables: usize::from(self.cables),
            base: self.base,
            mtu: self.mtu,
        })
    }

    /// The nodes as hosts to reach.
    pub(super) fn hosts(&self) -> Result<Vec<Host>, Error> {
        Ok(settled(self.parsed()?))
    }

    fn parsed(&self) -> Result<Vec<Host>, Error> {
        let named = |why| Error::usage(format!("--nodes {}: {why}", self.nodes));
        parse_list(&self.nodes).map_err(named)
    }
}
