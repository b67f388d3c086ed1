//! The arguments that determine the number of ranks.

use clap::Args;

use crate::error::Error;

/// The flags that say how many ranks there are.
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

/// The numbers of processes and threads to run, as far as flags say them. None is 0.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RankCounts {
    pub(crate) processes: Option<usize>,
    pub(crate) threads: Option<usize>,
    /// The GPUs, or ranks, of a thread.
    pub(crate) each: Option<usize>,
}

impl RankArgs {
    pub(crate) fn checked(&self) -> Result<RankCounts, Error> {
        for (flag, value) in [
            ("--procs", self.procs),
            ("-t", self.nthreads),
            ("-g", self.ngpus),
        ] {
            if value == Some(0) {
                return Err(Error::usage(format!("{flag} 0: must be at least 1")));
            }
        }
        Ok(RankCounts {
            processes: self.procs,
            threads: self.nthreads,
            each: self.ngpus,
        })
    }
}

impl RankCounts {
    /// The threads of a process.
    pub(crate) fn threads(self) -> usize {
        self.threads.unwrap_or(1)
    }

    /// The GPUs, or ranks, of a thread.
    pub(crate) fn each(self) -> usize {
        self.each.unwrap_or(1)
    }
}
