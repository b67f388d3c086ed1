//! The command line of `spark-perf tune`.

use clap::{Parser, ValueEnum};
use spark_ccl_console::notation::size;

use crate::call::collective::Collective;
use crate::cli::ranks::RankArgs;
use crate::cli::sweep::Sweep;
use crate::error::Error;

const AFTER_HELP: &str = "\
What it does:
  Times every candidate algorithm of a collective, at sizes that double, over
  the links that the ranks have: float sums on hot buffers, alternately out of
  place and in place, the best of several interleaved rounds. The machine should
  be otherwise idle.
  The fastest algorithms are written to a file of this machine, which the
  library reads when it creates a communicator. Results only apply to the same
  links, number of ranks and number of hosts: run it once for each.
  Other entries of the file are kept. All ranks of a communicator use rank 0's
  file.

On GPUs (--backend engine):
  Times every kernel of our own that could do a collective between the GPUs,
  from graphs of 20 calls. What is fastest is kept by the model of the GPUs,
  what is between them, the most CTAs of a kernel and the number of ranks.
  Without -t, -g, --procs and a launcher, one thread uses all GPUs.

The file:
  $XDG_CACHE_HOME/spark-ccl/tuning-<host>.json, or in ~/.cache; SPARK_CCL_TUNING
  names another, or is off.

Ranks:
  As for measurements: those of torchrun, mpirun or srun; else 2 local
  processes, or as many as --procs says.

Examples:
  spark-perf tune                              2 local processes
  SPARK_CCL_SHM=0 spark-perf tune all_reduce   the same over TCP
  mpirun -n 2 spark-perf tune -e 256M
  spark-perf tune --backend engine             the kernels between all GPUs";

/// The collectives that have several algorithms.
const ALL: [Collective; 5] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
];

/// What is tuned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum BackendArg {
    /// The algorithms of the library's own engine, in host memory
    Host,
    /// The kernels of the library's own engine, between GPUs
    Engine,
}

/// Measures which algorithms are the fastest here, and stores the result for the library.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "spark-perf tune",
    after_long_help = AFTER_HELP,
    after_help = "More with --help.",
    args_override_self = true
)]
pub(crate) struct TuneArgs {
    #[arg(
        value_enum,
        hide_possible_values = true,
        value_name = "COLLECTIVE",
        help = "all_reduce, all_gather, reduce_scatter, broadcast, reduce; all of them unless some are named"
    )]
    collectives: Vec<Collective>,
    #[command(flatten)]
    pub(crate) ranks: RankArgs,
    /// What executes the collectives, and where
    #[arg(
        long,
        value_enum,
        value_name = "BACKEND",
        default_value = "host",
        help_heading = "Ranks"
    )]
    pub(super) backend: BackendArg,
    /// First size of a rank's larger buffer: a number with K, M or G (binary)
    #[arg(
        short = 'b', long = "minbytes", value_name = "SIZE", default_value = "64",
        value_parser = size::parse, help_heading = "Sizes"
    )]
    pub(super) minbytes: u64,
    /// Last size
    #[arg(
        short = 'e', long = "maxbytes", value_name = "SIZE", default_value = "32M",
        value_parser = size::parse, help_heading = "Sizes"
    )]
    pub(super) maxbytes: u64,
}

impl TuneArgs {
    /// Refuses sizes and collectives that cannot be measured.
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.minbytes == 0 || self.minbytes > self.maxbytes {
            return Err(Error::usage(format!(
                "-b {} -e {}: the first size must be at least 1, and not above the last",
                self.minbytes, self.maxbytes
            )));
        }
        match self.collectives.iter().find(|named| !ALL.contains(named)) {
            Some(other) => Err(Error::usage(format!(
                "{}: there is nothing to choose; expected {}",
                other.name(),
                ALL.map(Collective::name).join(", ")
            ))),
            None => Ok(()),
        }
    }

    pub(super) fn collectives(&self) -> Vec<Collective> {
        if self.collectives.is_empty() {
            ALL.to_vec()
        } else {
            self.collectives.clone()
        }
    }

    pub(super) fn sweep(&self) -> Sweep {
        Sweep {
            min: self.minbytes,
            max: self.maxbytes,
            factor: 2,
            step: 1,
        }
    }
}
