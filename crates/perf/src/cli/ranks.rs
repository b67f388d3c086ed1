//! The arguments that determine the number of ranks.

use clap::{ArgAction, Args};

use crate::notation::pair;

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
    #[arg(long, value_name = "N", help_heading = "Ranks")]
    pub(crate) procs: Option<usize>,

    /// How spark-perf starts its own processes: RANK:PARENT; the unique id is on standard input
    #[arg(long, hide = true, action = ArgAction::Set, value_parser = parse_member)]
    pub(crate) member: Option<Member>,
}

/// Which of the processes that spark-perf has started this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Member {
    /// The index of the process.
    pub(crate) process: usize,
    /// The process that started it, and with which it must die.
    pub(crate) parent: u32,
}

fn parse_member(text: &str) -> Result<Member, String> {
    pair::parse(text, "RANK:PARENT").map(|(process, parent)| Member { process, parent })
}
