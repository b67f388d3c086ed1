//! The arguments that determine the number of ranks.

use clap::Args;

/// The numbers of processes and threads to run.
#[derive(Debug, Clone, Args)]
pub(crate) struct RankArgs {
    /// Threads of each process
    #[arg(
        short = 't',
        long = "nthreads",
        value_name = "N",
        help_heading = "Ranks"
    )]
    pub(crate) nthreads: Option<usize>,
    /// GPUs of each thread, or further threads in host memory; ranks = processes x t x g
    #[arg(short = 'g', long = "ngpus", value_name = "N", help_heading = "Ranks")]
    pub(crate) ngpus: Option<usize>,
    /// Local processes to start; with a launcher, must be the launcher's number
    /// [default: 2 without launcher, -t, -g and GPUs]
    #[arg(long, alias = "np", value_name = "N", help_heading = "Ranks")]
    pub(crate) procs: Option<usize>,
}

impl RankArgs {
    /// The threads of a process.
    pub(crate) fn threads(&self) -> usize {
        self.nthreads.unwrap_or(1)
    }

    /// The GPUs, or ranks, of a thread.
    pub(crate) fn each(&self) -> usize {
        self.ngpus.unwrap_or(1)
    }
}
