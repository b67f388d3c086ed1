//! The command line of `spark-perf discover`.

use std::time::Duration;

use clap::Parser;

const AFTER_HELP: &str = "\
What it does:
  Listens for ssh servers that are announced by multicast DNS (_ssh._tcp, as by
  avahi), and asks all nodes of each link for an answer (ICMPv6 echo to
  ff02::1), which they also give where no addresses are configured. The latter
  needs the permission to send echo requests: net.ipv4.ping_group_range, or
  root. Meanwhile it listens to LLDP, by which hosts with lldpd say their name
  and address about every 30 s (--seconds 35 hears all); this takes root (sudo)
  or CAP_NET_RAW, and an interface that takes in LLDP's frames, as those do that
  lldpd or systemd-networkd uses here. Then each host is asked whether it has an
  ssh server.
  Prints a hostfile for --hostfile, with this host first. Nothing is changed on
  any host without --copy-keys.

--copy-keys:
  Runs ssh-copy-id, which asks for the password there: for the hosts of -H, or
  else for each to which you agree. What is shown of a host is what it says of
  itself, but for the fingerprint of its key: compare that with ssh-keygen -l on
  the host.

Exit codes:
  0 some host was found     2 a key could not be copied
  3 no host was found       6 bad arguments

Examples:
  spark-perf discover > hosts
  spark-perf launch --hostfile hosts -- spark-perf all_reduce
  spark-perf discover --copy-keys --user nvidia -H spark-a,spark-b";

/// Finds hosts on the link.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "spark-perf discover",
    after_long_help = AFTER_HELP,
    after_help = "More with --help."
)]
pub(crate) struct DiscoverArgs {
    /// How long to look
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=300))]
    seconds: u64,
    /// Print JSON instead of a hostfile
    #[arg(long)]
    pub(super) json: bool,
    /// Let your ssh key in on hosts that are found, after a question for each
    #[arg(long)]
    pub(super) copy_keys: bool,
    /// Copy keys to these hosts, without a question, and to no other: names or addresses as they
    /// are printed
    #[arg(
        short = 'H',
        long = "host",
        value_name = "HOST,..",
        value_delimiter = ',',
        requires = "copy_keys"
    )]
    pub(super) only: Vec<String>,
    /// The user on the other hosts [default: the same as here]
    #[arg(long, value_name = "NAME", requires = "copy_keys")]
    pub(super) user: Option<String>,
}

impl DiscoverArgs {
    pub(super) fn time(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}
