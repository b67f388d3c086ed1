//! The command line of `spark-perf tcp_bw`.

use clap::Parser;

use crate::cli::sweep::Sweep;
use crate::error::Error;
use crate::pair::args::{LoadArgs, PairArgs};

/// A message is kept in memory at both ends of each socket.
const MOST_BYTES: u64 = 1 << 28;

const AFTER_HELP: &str = "\
What it does:
  Rank 0 writes messages to rank 1 over sockets of TCP, as fast as these take
  them: each message goes over the rail that is free first. A rail is a pair of
  network interfaces with a subnet in common, as fast as the fastest of them.
  Sockets are bound to the addresses of the interfaces, and to the interfaces
  themselves where several of a host share a subnet. Where that does not work,
  the rail's line says so: the kernel's routes then choose what carries it.

Table:
  The round trip is the median of 200, of one byte. time is from the first
  message until the other rank has read the last; GB/s are 10^9 bytes, both
  directions together. CPU is the processor time of both programs per MiB.
  #wrong counts bytes that differ from what was sent, in the last message of
  each socket. With several rails, a line for each follows.

Ranks:
  Two, as for collectives: those of spark-perf launch, torchrun, mpirun or srun.
  They exchange what they need to connect over TCP. NCCL_SOCKET_IFNAME and
  NCCL_SOCKET_FAMILY, and their SPARK_CCL names, choose the interfaces.

Memory:
  With --memory pinned, messages are in memory of the host that CUDA has pinned,
  and that its GPUs reach. It is allocated through GPU 0, or SPARK_CCL_DEVICE.
  Both ranks need CUDA's driver and a GPU.

Exit codes:
  0 success     2 no rail, TCP fails, or no pinned memory
  3 the library fails     4 timeout     6 bad arguments     7 wrong data

Examples:
  spark-perf launch -H spark-1,spark-2 -- spark-perf tcp_bw --rails each
  spark-perf launch -H spark-1,spark-2 -- spark-perf tcp_bw --bidirectional
  spark-perf launch -H spark-1,spark-2 -- spark-perf tcp_bw --memory pinned";

/// Measures the bandwidth of TCP between two ranks, by pairs of network interfaces.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "spark-perf tcp_bw",
    after_long_help = AFTER_HELP,
    after_help = "More with --help.",
    args_override_self = true
)]
pub(crate) struct TcpArgs {
    #[command(flatten)]
    pub(super) pair: PairArgs,
    #[command(flatten)]
    pub(super) load: LoadArgs,
    /// Sockets on each rail, and each way; one keeps one core busy at either end
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(super) sockets: u16,
}

impl TcpArgs {
    pub(super) fn sweep(&self) -> Result<Sweep, Error> {
        let LoadArgs {
            minbytes, maxbytes, ..
        } = self.load;
        self.pair.sweep(minbytes, maxbytes, MOST_BYTES)
    }
}
