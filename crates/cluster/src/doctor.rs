//! `spark-perf doctor`: finds what is wrong with hosts and the network between them, and how to
//! mend it.
//!
//! Checks are pure functions from models of hosts to findings, so that each is tested with hosts
//! that have a fault.

mod checks;
mod jobs;
mod probe;

use std::path::PathBuf;

pub(crate) use checks::expected;
use checks::{Pinned, Subject};
use clap::Parser;
pub(crate) use jobs::environment;
pub(crate) use probe::{Launcher, Probed};
use spark_ccl_console::{exit, plain, print};
use spark_ccl_topology::{Cluster, Host};

use crate::error::Error;
use crate::finding::{Finding, Fix, Problem, Status};
use crate::port;
use crate::remote;
use crate::survey::{SurveyArgs, Surveyed, Unreached, survey_each};

/// The version of the JSON form.
const FORMAT: u32 = 1;

const AFTER_HELP: &str = "\
What it prints:
  A line for each check of each host, of each pair of hosts with a cable between
  them, and of all hosts together: ok, unknown (what was read does not decide
  it), warn (it works, but slowly or not for long) or FAIL (it does not work);
  what is there; and where that is not as it should be, what is wanted, why it
  matters, and the command that puts it right, with the host on which to run it.
  Where what was read proves no command right, it says what to look at instead.
  What ip and sysctl set is lost at the next start; spark-perf netplan writes
  addresses and MTUs that last.
  p0, p1 are cages of a network card: sudo ethtool --identify INTERFACE 10 makes
  the light beside one blink.
  Other hosts are asked over ssh (-H), or described by files that `spark-perf
  topo --json` makes on each of them (--from). The limit on locked memory and
  others are those of the shell in which that ran.

  Of several hosts that are asked over ssh, each opens a port, and the others
  connect to it at every address that ranks use: so firewalls are found.

  --probe starts ranks on them (spark-perf launch) and measures round trip and
  bandwidth of each rail alone and of all together, over TCP and over RDMA, and
  a verified all_reduce.

What it does not check: policies of routes, and without --probe what only load
shows.

Exit codes:
  0 nothing fails (there may be warnings)
  1 something fails: a finding says what, also where a host does not answer
  2 this host, or a file of --from, cannot be read     6 bad arguments

Examples:
  spark-perf doctor                       this host
  spark-perf doctor -H a,b                two hosts, and the cable between them
  spark-perf doctor --probe -H a,b        what they carry, too
  spark-perf doctor --from a.json,b.json  by what topo --json has written down
  spark-perf doctor --quiet --json        what warns or fails, for programs";

/// Finds what is wrong with hosts and with what joins them.
#[derive(Debug, Clone, Parser)]
#[command(name = "spark-perf doctor", after_long_help = AFTER_HELP, after_help = "More with --help.")]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    hosts: SurveyArgs,
    /// Measure what the hosts carry, each rail alone and all together, and the collective itself;
    /// takes some seconds
    #[arg(long, conflicts_with = "from")]
    probe: bool,
    /// Check the settings of this file, too: lines NAME=VALUE, as for docker run --env-file, or as
    /// spark-perf env prints them; may come more than once
    #[arg(long, value_name = "FILE")]
    env_file: Vec<PathBuf>,
    /// Print the findings as JSON, with a summary
    #[arg(long)]
    json: bool,
    /// Print only what warns or fails
    #[arg(short, long)]
    quiet: bool,
}

/// Prints the findings; returns the exit code.
pub(crate) fn run(args: &DoctorArgs) -> Result<u8, Error> {
    let pinned = jobs::with_files(&args.env_file)?;
    let found = examine(&args.hosts, args.probe, &pinned)?.found;
    let shown = found
        .iter()
        .filter(|one| !args.quiet || one.status > Status::Unknown);
    let text = if args.json {
        json(&found, &shown.collect::<Vec<_>>())
    } else {
        let mut lines: Vec<_> = shown.map(ToString::to_string).collect();
        lines.push(summary(&found));
        format!("{}\n", lines.join("\n"))
    };
    print(&text)?;
    let fails = found.iter().any(|one| one.status == Status::Fail);
    Ok(if fails { exit::UNSOUND } else { 0 })
}

/// Hosts, and what was found about them.
pub(crate) struct Examination {
    /// Hosts that answer, each once.
    pub(crate) hosts: Vec<Host>,
    /// The way to each of them, if it was asked over the network.
    reached: Vec<Option<remote::Host>>,
    pub(crate) found: Vec<Finding>,
    /// The measurements.
    pub(crate) probed: Option<Probed>,
}

/// Examines hosts: reads them; tries connections between several that were asked; on demand,
/// measures.
pub(crate) fn examine(
    args: &SurveyArgs,
    probe: bool,
    pinned: &[Pinned],
) -> Result<Examination, Error> {
    if probe && args.hosts.hosts()?.len() < 2 {
        let why = "--probe measures between hosts: name at least two with -H";
        return Err(Error::usage(why.to_owned()));
    }
    let mut examination = read(survey_each(args)?, pinned);
    let reached = examination.all_reached();
    if reached.len() < 2 {
        return Ok(examination);
    }
    let cluster = Cluster::of(&examination.hosts);
    let remote = args.hosts.ssh.remote()?;
    let mut found = port::examine(&remote, &reached, &cluster);
    if probe {
        let launcher = Launcher {
            ssh: args.hosts.ssh.words(),
            hosts: &reached,
        };
        let (probed, judged) = probe::probe(&launcher, &cluster);
        found.extend(judged);
        examination.probed = Some(probed);
    }
    examination.found.extend(found);
    Ok(examination)
}

impl Examination {
    /// The way to each host; none unless all were asked over the network.
    pub(crate) fn all_reached(&self) -> Vec<remote::Host> {
        let all: Option<Vec<_>> = self.reached.iter().cloned().collect();
        all.unwrap_or_default()
    }
}

/// The findings from reading these hosts; silent ones come first.
fn read(surveyed: Vec<Result<Surveyed, Unreached>>, pinned: &[Pinned]) -> Examination {
    let mut found = Vec::new();
    let mut met: Vec<Surveyed> = Vec::new();
    for one in surveyed {
        match one {
            Ok(one) => met.push(one),
            Err(one) => found.push(unreached(&one)),
        }
    }
    found.extend(twice(&mut met));
    let clocks: Vec<_> = met.iter().map(|one| one.clock_ahead).collect();
    let (hosts, reached): (Vec<_>, Vec<_>) =
        met.into_iter().map(|one| (one.host, one.reached)).unzip();
    found.extend(checks::all(&Subject {
        cluster: &Cluster::of(&hosts),
        clocks: &clocks,
        pinned,
    }));
    Examination {
        hosts,
        reached,
        found,
        probed: None,
    }
}

/// Examines hosts for the fuzz target.
#[cfg(test)]
pub(crate) fn judge(hosts: &[Host]) {
    let written = |host: &Host| {
        Ok(Surveyed {
            host: host.clone(),
            clock_ahead: Some((0.0, 0.0)),
            reached: None,
        })
    };
    let found = read(hosts.iter().map(written).collect(), &[]).found;
    let text: Vec<_> = found.iter().map(ToString::to_string).collect();
    assert!(!text.concat().contains(char::is_control));
    assert!(!summary(&found).is_empty());
}

/// Removes a host that is on the list already: two entries with one hardware address are one
/// machine. Returns findings that say so.
fn twice(met: &mut Vec<Surveyed>) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut index = 1;
    while index < met.len() {
        let host = &met[index].host;
        let is_same = |other: &&Surveyed| is_one_machine(&other.host, host);
        let Some(first) = met[..index].iter().find(is_same) else {
            index += 1;
            continue;
        };
        let problem = Problem::new(
            format!("{} and {} are one machine", first.host.name, host.name),
            "each host once",
            "the second one is left out of all other checks",
            Fix::look("whether a host is named twice, or a file is the copy of another one"),
        );
        found.push(Finding::fail("host.twice", &[&host.name], problem));
        met.remove(index);
    }
    found
}

/// Whether two hosts have a hardware address of a card in common.
fn is_one_machine(a: &Host, b: &Host) -> bool {
    let of_cards = |host: &Host| -> Vec<String> {
        let ports = host.ports().filter_map(|(_, port)| port.netdev.clone());
        let ports: Vec<_> = ports.collect();
        let netdevs = host.network.netdevs.iter();
        let of_cards = netdevs.filter(|one| one.pci.is_some() || ports.contains(&one.name));
        of_cards.filter_map(|one| one.mac.clone()).collect()
    };
    let own = of_cards(a);
    of_cards(b).iter().any(|mac| own.contains(mac))
}

fn unreached(one: &Unreached) -> Finding {
    let problem = Problem::new(
        plain(&one.error.to_string()),
        "ssh without a password, and spark-perf there",
        "what this host has is not known, and launch cannot start ranks there",
        Fix::look(format!(
            "ssh {} 'PATH=$PATH:$HOME/.cargo/bin spark-perf topo'; ssh-copy-id takes a key there",
            plain(&one.name)
        )),
    );
    Finding::fail("host.ssh", &[&one.name], problem)
}

/// The number of findings of each status.
fn counts(found: &[Finding]) -> [usize; 4] {
    let count = |status: Status| found.iter().filter(|one| one.status == status).count();
    [Status::Ok, Status::Unknown, Status::Warn, Status::Fail].map(count)
}

fn json(found: &[Finding], shown: &[&Finding]) -> String {
    let [ok, unknown, warn, fail] = counts(found);
    let all = serde_json::json!({
        "format": FORMAT,
        "summary": { "ok": ok, "unknown": unknown, "warn": warn, "fail": fail },
        "findings": shown,
    });
    format!("{all:#}\n")
}

fn summary(found: &[Finding]) -> String {
    let [ok, unknown, warn, fail] = counts(found);
    let unchecked = if found.iter().any(|one| one.id == port::ID) {
        "policies of routes were not checked"
    } else {
        "firewalls and policies of routes were not checked"
    };
    if warn + fail == 0 {
        return format!("# nothing to do: {ok} checks ok, {unknown} unknown; {unchecked}");
    }
    let mut commands = found.iter().filter_map(Finding::command);
    let lasts = if commands.any(|one| one.contains("sudo ip ") || one.contains("sysctl")) {
        "\n# what ip and sysctl set is lost at the next start: spark-perf netplan writes addresses \
         and MTUs that last"
    } else {
        ""
    };
    format!("# {fail} fail, {warn} to look at, {unknown} unknown, {ok} ok; {unchecked}{lasts}")
}
