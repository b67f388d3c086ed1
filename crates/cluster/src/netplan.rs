//! `spark-perf netplan`: plans the addresses of the fast network, and applies them on demand.
//!
//! The plan is a pure function ([`plan`]). Applying it is a matter of [`agent`]s on the nodes,
//! which roll back by themselves. Must not touch networks that are in use.

pub(crate) mod agent;
mod apply;
mod args;
mod cables;
mod file;
mod link_state;
mod look;
mod plan;
mod reach;
mod trial;
mod yaml;

use std::collections::BTreeSet;
use std::path::Path;

pub(crate) use args::NetplanArgs;
use plan::Node;
use serde::Serialize;
use spark_ccl_console::{json, print, print_error};

use crate::error::Error;
use crate::program::output_of;

/// The file of each node.
const FILE: &str = "90-spark-ccl.yaml";

/// A command of the program: `apply` applies all files; `get` reads them, and fails if one is
/// wrong. It has a time limit, since the trial's lock is held meanwhile.
fn netplan(command: &str) -> std::io::Result<()> {
    output_of(&format!("timeout --kill-after=5 40 netplan {command}")).map(drop)
}

/// Prints the plan, or applies it.
pub(crate) fn run(args: &NetplanArgs) -> Result<u8, Error> {
    let nodes = plan::plan(&args.layout()?).map_err(Error::usage)?;
    if args.apply {
        return apply::apply(args, &nodes);
    }
    if let Some(text) = absent(&nodes, &interfaces()) {
        print_error(format_args!("{text}"));
    }
    if let Some(folder) = &args.output {
        return write_files(folder, &nodes).map(|()| 0);
    }
    print(&if args.json {
        json(&Plan { nodes: &nodes })?
    } else {
        files(&nodes)
    })?;
    Ok(0)
}

/// The interfaces of this host, also the ones that are down. None where the kernel does not tell.
fn interfaces() -> BTreeSet<String> {
    let entries = std::fs::read_dir("/sys/class/net").into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| name != "lo").collect()
}

/// Which planned interfaces this host lacks, if any. Only `--apply` asks the nodes.
fn absent(nodes: &[Node], present: &BTreeSet<String>) -> Option<String> {
    let planned = nodes.iter().flat_map(|node| &node.interfaces);
    let planned: BTreeSet<&str> = planned.map(|one| &*one.name).collect();
    let absent = planned.into_iter().filter(|name| !present.contains(*name));
    let absent: Vec<&str> = absent.collect();
    let present: Vec<&str> = present.iter().map(String::as_str).collect();
    (!absent.is_empty()).then(|| {
        format!(
            "this host has no interface {} (it has: {}); the nodes were not asked: if they have \
             other interfaces, too, name them by --interfaces",
            absent.join(", "),
            present.join(", ")
        )
    })
}

fn files(nodes: &[Node]) -> String {
    let file = |node: &Node| {
        let name = &node.name;
        format!(
            "# On {name}: /etc/netplan/{FILE}, for root only (mode 600); then: sudo netplan try\n\
             {}",
            yaml::file(node)
        )
    };
    let files: Vec<String> = nodes.iter().map(file).collect();
    files.join("---\n")
}

/// Writes a file for each node, and says where each belongs.
fn write_files(folder: &Path, nodes: &[Node]) -> Result<(), Error> {
    let created = std::fs::create_dir_all(folder);
    created.map_err(Error::system(folder.display().to_string()))?;
    for node in nodes {
        let path = folder.join(format!("{}.yaml", node.name));
        let written = file::write(&path, &yaml::file(node));
        written.map_err(Error::system("writing the plan"))?;
        print_error(format_args!(
            "{}: to be /etc/netplan/{FILE} of {}, for root only (mode 600); then: sudo netplan try",
            path.display(),
            node.name
        ));
    }
    Ok(())
}

/// The JSON of a plan.
#[derive(Serialize)]
struct Plan<'a> {
    nodes: &'a [Node],
}
