//! `spark-perf topo`: what hosts have, and what joins them, as table, JSON or picture.
//!
//! Knows the model of hosts. Judges nothing.

mod curve;
mod labels;
mod layout;
mod picture;
mod svg;
mod table;

use std::path::PathBuf;

use clap::Parser;
use spark_ccl_console::{draft, print};
use spark_ccl_topology::{Cluster, Host};

use crate::error::Error;
use crate::survey::{SurveyArgs, survey};

const AFTER_HELP: &str = "\
What it prints:
  For each host its processors, memory and GPUs, and a line for each RDMA
  device: the cage of the network card that it leads to, state, rate, network
  interface and MTU, address with its index in the GID table, PCI address and
  PCIe link.
  Devices of one cage are twins: one cable, of which each carries a part.
  For several hosts, the cables between them and the rails that each carries, as
  far as addresses and the neighbours that the kernels know show that.

Exit codes:
  0 success     2 a host cannot be read     6 bad arguments

Examples:
  spark-perf topo --json > a.json           this host, to look at elsewhere
  spark-perf topo -H a,b                    two hosts, and what joins them
  spark-perf topo --from a.json,b.json      the same by what was written down
  spark-perf topo -H a,b --svg cluster.svg  a picture";

/// Shows devices, ports, interfaces, rails and cables.
#[derive(Debug, Clone, Parser)]
#[command(name = "spark-perf topo", after_long_help = AFTER_HELP, after_help = "More with --help.")]
pub(crate) struct TopoArgs {
    #[command(flatten)]
    hosts: SurveyArgs,
    /// Print all that is known as JSON: a host, or a list of hosts
    #[arg(long)]
    json: bool,
    /// Draw a picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Prints and draws; returns the exit code.
pub(crate) fn run(args: &TopoArgs) -> Result<u8, Error> {
    let hosts = survey(&args.hosts)?;
    let cluster = Cluster::of(&hosts);
    if let Some(path) = &args.svg {
        let writing = Error::system(format!("writing {}", path.display()));
        let drawn = picture::draw(&cluster);
        draft::replace(path, drawn.as_bytes()).map_err(writing)?;
    }
    if args.json {
        print(&format!("{}\n", json(&hosts)))?;
    } else {
        print(&table::text(&cluster))?;
    }
    Ok(0)
}

/// The picture, as SVG.
pub(crate) fn picture(cluster: &Cluster<'_>) -> String {
    picture::draw(cluster)
}

/// The table and the picture, for the fuzz target.
#[cfg(test)]
pub(crate) fn show(cluster: &Cluster<'_>) {
    let text = table::text(cluster);
    assert!(!text.contains(|one: char| one.is_control() && one != '\n'));
    assert!(picture::draw(cluster).ends_with("</svg>\n"));
}

fn json(hosts: &[Host]) -> String {
    match hosts {
        [host] => host.to_json(),
        // Cannot fail: JSON can represent every field.
        all => serde_json::to_string_pretty(all).unwrap_or_default(),
    }
}
