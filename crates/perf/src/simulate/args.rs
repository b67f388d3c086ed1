//! The command line of `spark-perf simulate`.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use spark_ccl_console::notation::size;

use crate::call::collective::Collective;

const AFTER_HELP: &str = "\
What it prints:
  Times of one in-place collective of bytes, MODELLED: nothing runs, and nothing
  here is a measurement. Up to --exact ranks, every message of the schedules
  that spark-ccl would run is simulated in the ports on its route. For more
  ranks, closed forms are used, marked with ~. They are within about 10 % of the
  simulation (within 35 % if ranks forward messages of others, and for
  double-tree across hosts). Sizes and busbw are as in the measured tables:
  2(n-1)/n x bytes / time for all_reduce, (n-1)/n for all_gather.

The model:
  A message costs alpha microseconds from end to end, and its bytes divided by
  beta in each port on its route, where it queues with other messages. Received
  bytes are reduced and copied at the speed of the rank's memory; a copy moves
  two bytes per byte, and a reduction three.
  --path safe: bytes are copied into and out of slots; zero-copy: they are not,
  but each message costs alpha three times, since its receiver fetches it after
  it was announced.
  sparks      every rank is a host with one port of 23.7 GB/s (what its users
              measure) to a switch that is never the bottleneck; alpha 5 us
              (assumed: RDMA); memory of 273 GB/s
  spark-ring  the same without a switch: cables to the two neighbours; both
              share the host's 23.7 GB/s, as does what a rank forwards for
              others (store and forward per packet, 5 us per host)
  hosts8      hosts of 8 GPUs; within, 337 GB/s per GPU (between what NCCL
              reaches on two and on four H200) and 1 us (assumed); across, a
              rail of 50 GB/s per GPU to a switch, and 5 us (assumed)

Algorithms:
  Of all_reduce ring, double-tree, halving-doubling, and hierarchical: within
  hosts, between hosts, within hosts (if every rank is a host, consecutive ranks
  count as one host: as many as the largest divisor up to the square root of the
  number of ranks); if named, also direct and recursive-doubling. Of all_gather
  ring, pairwise and direct.

Exit codes:
  0 success     2 a call of the operating system failed     6 bad arguments

Examples:
  spark-perf simulate
  spark-perf simulate --topology hosts8 --ranks 8,64,512,4096 --plot hosts8.svg
  spark-perf simulate --topology hosts8 --rails 1 --bytes 64M
  spark-perf simulate --alpha 30 --beta 1.2 --measured run.json
  spark-perf simulate --collective all_gather --ranks 2 --path zero-copy";

/// Models the time of collectives on other machines, by number of ranks and size.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "spark-perf simulate",
    after_long_help = AFTER_HELP,
    after_help = "More with --help.",
    args_override_self = true
)]
pub(crate) struct SimulateArgs {
    /// The machine
    #[arg(long, value_enum, value_name = "NAME", default_value_t = Topology::Sparks)]
    pub(crate) topology: Topology,
    /// What the ranks do: `all_reduce` or `all_gather`
    #[arg(long, value_enum, value_name = "NAME", default_value_t = Collective::AllReduce, hide_possible_values = true)]
    pub(crate) collective: Collective,
    /// Sizes of a rank's larger buffer: numbers with K, M or G (binary), separated by commas
    #[arg(
        long, value_name = "SIZE,...", value_delimiter = ',', default_value = "1K,1M,64M,1G",
        value_parser = size::parse
    )]
    pub(crate) bytes: Vec<u64>,
    /// Numbers of ranks, separated by commas
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "2,4,8,16,32,64,128,256,512,1024,2048,4096,8192,16384"
    )]
    pub(crate) ranks: Vec<u32>,
    /// Algorithms, separated by commas [default: those that suit many ranks]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub(crate) algo: Vec<String>,
    /// How data gets into messages and out of them
    #[arg(long, value_enum, value_name = "PATH", default_value_t = Path::Safe)]
    pub(crate) path: Path,
    /// Latency of a message between hosts, in microseconds, instead of the machine's
    #[arg(long, value_name = "US")]
    pub(crate) alpha: Option<f64>,
    /// Speed of a port to other hosts, in GB/s (1e9), instead of the machine's
    #[arg(long, value_name = "GB/S")]
    pub(crate) beta: Option<f64>,
    /// Speed at which a rank reads and writes its memory, in GB/s (1e9), instead of the machine's:
    /// a processor core alone is slower
    #[arg(long, value_name = "GB/S")]
    pub(crate) memory: Option<f64>,
    /// Network cards that the ranks of a host share (hosts8)
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) rails: u32,
    /// Simulate every message up to this many ranks; use closed forms for more
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) exact: u32,
    /// Show the points of a measured run (a JSON report of spark-perf or nccl-tests) beside the
    /// model's
    #[arg(long, value_name = "FILE.json")]
    pub(crate) measured: Option<PathBuf>,
    /// Draw time and bus bandwidth against ranks (against size, if there is one number of ranks)
    #[arg(long, value_name = "FILE.svg|.png")]
    pub(crate) plot: Option<PathBuf>,
}

/// `--topology`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Topology {
    /// DGX Sparks on one switch
    Sparks,
    /// DGX Sparks cabled in a ring
    SparkRing,
    /// Hosts of 8 GPUs with 8 rails
    Hosts8,
}

/// `--path`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Path {
    /// Staged through slots
    Safe,
    /// Straight between registered buffers
    ZeroCopy,
}
