//! The command lines of `spark-perf rdma_bw` and `rdma_lat`.

use clap::{Args, Parser, ValueEnum};
use spark_ccl_console::notation::size;

use crate::cli::sweep::Sweep;
use crate::error::Error;
use crate::pair::args::{LoadArgs, PairArgs};

const BANDWIDTH_HELP: &str = "\
What it does:
  Rank 0 writes to rank 1 (sends to it, reads from it), as fast as the rails
  accept requests: each request is posted on the rail with the fewest requests
  in flight. The ranks find the rails as the library does: they try every pair
  of ports that may be on the same network.

Table:
  time is from the first request to the completion of the last, on the slower
  rank if both write; GB/s are 10^9 bytes, both directions together. CPU is the
  processor time of both programs per MiB. #wrong counts bytes that differ from
  what was sent, after the last request. With several rails, a line for each
  follows.";

const LATENCY_HELP: &str = "\
What it does:
  Rank 0 writes to rank 1 (sends to it), which answers in the same way; the time
  is half the round trip, as in perftest. Writes carry an immediate value, so
  that they complete a receive, as in the library. For reads the time is that of
  the whole request. Every rail is measured separately.";

const RANKS_HELP: &str = "\
Ranks:
  Two, as for collectives: those of torchrun, mpirun or srun; else 2 local
  processes, which reach each other through the devices of this machine. They
  exchange what they need to connect over TCP.
  These settings apply: SPARK_CCL_IB_HCA, SPARK_CCL_IB_GID_INDEX,
  SPARK_CCL_IB_TC and so on, and NCCL's names of them.

Memory:
  With --memory pinned, the devices get memory of the host that CUDA has pinned,
  and that GPUs, processors and network cards all reach. It is allocated through
  GPU 0, or SPARK_CCL_DEVICE. Both ranks need CUDA's driver and a GPU.

Exit codes:
  0 success     2 no RDMA device, or no pinned memory     3 RDMA fails
  4 timeout     6 bad arguments     7 wrong data

Examples:
  mpirun -n 2 --host spark-a,spark-b spark-perf rdma_bw
  mpirun -n 2 --host spark-a,spark-b spark-perf rdma_bw --rails one
  mpirun -n 2 --host spark-a,spark-b spark-perf rdma_bw --memory pinned
  mpirun -n 2 --host spark-a,spark-b spark-perf rdma_lat --wait events";

/// Measures the bandwidth of RDMA between two ranks.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "spark-perf rdma_bw",
    after_long_help = format!("{BANDWIDTH_HELP}\n\n{RANKS_HELP}"),
    after_help = "More with --help.",
    args_override_self = true
)]
pub(crate) struct BandwidthArgs {
    #[command(flatten)]
    pub(super) common: Common,
    #[command(flatten)]
    pub(super) load: LoadArgs,
    /// Requests in flight on each rail
    #[arg(
        short = 'd', long = "depth", value_name = "N", default_value_t = 128,
        value_parser = clap::value_parser!(u32).range(1..=8192)
    )]
    pub(super) depth: u32,
}

/// Measures the latency of RDMA between two ranks.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "spark-perf rdma_lat",
    after_long_help = format!("{LATENCY_HELP}\n\n{RANKS_HELP}"),
    after_help = "More with --help.",
    args_override_self = true
)]
pub(crate) struct LatencyArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// First size: a number with K, M or G (binary)
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", default_value = "8", value_parser = size::parse)]
    minbytes: u64,
    /// Last size
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", default_value = "8K", value_parser = size::parse)]
    maxbytes: u64,
}

/// The arguments that both commands have.
#[derive(Debug, Clone, Args)]
pub(super) struct Common {
    /// What carries the data
    #[arg(long, value_enum, default_value_t = Verb::Write)]
    pub(super) verb: Verb,
    /// How to wait for completions: poll and yield to other programs, or sleep
    #[arg(long, value_enum, default_value_t = Wait::Poll)]
    pub(super) wait: Wait,
    #[command(flatten)]
    pub(super) pair: PairArgs,
}

/// `--verb`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Verb {
    /// RDMA write
    Write,
    /// RDMA read
    Read,
    /// Send into posted receives
    Send,
}

/// `--wait`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Wait {
    /// Poll
    Poll,
    /// Sleep until a completion event
    Events,
}

impl BandwidthArgs {
    pub(super) fn sweep(&self) -> Result<Sweep, Error> {
        if self.load.seconds.is_some() && self.common.verb == Verb::Send {
            return Err(Error::usage(
                "--seconds with --verb send: who receives must know the number of requests"
                    .to_owned(),
            ));
        }
        let LoadArgs {
            minbytes, maxbytes, ..
        } = self.load;
        self.common.pair.sweep(minbytes, maxbytes, MOST_BYTES)
    }
}

impl LatencyArgs {
    pub(super) fn sweep(&self) -> Result<Sweep, Error> {
        self.common
            .pair
            .sweep(self.minbytes, self.maxbytes, MOST_BYTES)
    }
}

/// The largest message, by InfiniBand's rules.
const MOST_BYTES: u64 = 1 << 31;
