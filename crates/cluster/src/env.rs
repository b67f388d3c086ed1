//! `spark-perf env`: the environment that these hosts should run with, each value with the probe
//! that decided it.
//!
//! Knows the model of hosts, and names of variables. Prints only values that a probe has shown to
//! be right.

mod devices;
mod format;
mod interfaces;
mod setting;
mod values;

use clap::{Parser, ValueEnum};
use spark_ccl_console::print;
use spark_ccl_topology::Cluster;
use values::values;

use crate::error::Error;
use crate::survey::{SurveyArgs, survey};

const AFTER_HELP: &str = "\
What it prints:
  Settings for this library and for NCCL, which are the same on all of these
  hosts, and before each what was found that decides it. What nothing decides is
  not set: the libraries' own defaults are better than a guess. In particular,
  no index of an address is set, since it changes when an interface loses its
  address and gets it back. With one host, only what it alone decides: name all
  hosts (-H, --from) for the rest.

Modes:
  safe     device memory goes through host memory
  dmabuf   network cards reach device memory by dma-buf; refused where CUDA's
           driver says that a GPU cannot, or that it shares the processors'
           memory
  auto     safe where a GPU shares the processors' memory; otherwise nothing:
           what a driver claims is not what works

Exit codes:
  0 success     2 a host cannot be read
  6 bad arguments, or a mode that these hosts do not have

Examples:
  eval \"$(spark-perf env -H spark-1,spark-2)\"
  docker run $(spark-perf env --docker) IMAGE ..  also: podman run
  srun --export=ALL ..                            after the first
  sparkrun and others take the settings of --json";

/// Prints the environment to run with.
#[derive(Debug, Clone, Parser)]
#[command(name = "spark-perf env", after_long_help = AFTER_HELP, after_help = "More with --help.")]
pub(crate) struct EnvArgs {
    #[command(flatten)]
    hosts: SurveyArgs,
    /// How device memory goes over the network
    #[arg(long, value_enum, default_value = "auto")]
    mode: Mode,
    /// Lines for a shell, with the reasons as comments [default: this form]
    #[arg(long, group = "form")]
    shell: bool,
    /// Options of docker run and podman run
    #[arg(long, group = "form")]
    docker: bool,
    /// JSON: its format's number, and a list of names, values and reasons
    #[arg(long, group = "form")]
    json: bool,
}

/// `--mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Through host memory
    Safe,
    /// Straight from device memory
    Dmabuf,
    /// Safe where a GPU shares the processors' memory, otherwise the libraries' own choice
    Auto,
}

/// All settings in all forms, for the fuzz target.
#[cfg(test)]
pub(crate) fn decide(cluster: &Cluster<'_>) {
    for mode in [Mode::Safe, Mode::Auto, Mode::Dmabuf] {
        if let Ok(values) = values(cluster, mode) {
            let options = format::docker(cluster.hosts, &values.settings);
            assert!(
                options
                    .bytes()
                    .all(|one| one.is_ascii_alphanumeric() || b"_.:@%-=^,/ \n".contains(&one))
            );
            let _ = (format::shell(&values), format::json(&values));
        }
    }
}

/// Prints the settings; returns the exit code.
pub(crate) fn run(args: &EnvArgs) -> Result<u8, Error> {
    let hosts = survey(&args.hosts)?;
    let cluster = Cluster::of(&hosts);
    let values = values(&cluster, args.mode).map_err(Error::usage)?;
    let text = if args.json {
        format::json(&values)
    } else if args.docker {
        format::docker(&hosts, &values.settings)
    } else {
        format::shell(&values)
    };
    print(&text)?;
    Ok(0)
}
