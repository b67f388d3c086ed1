//! The flags that the commands that measure rails have in common.

use std::ops::Range;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use spark_ccl_console::{notation::size, rails::MemoryKind};

use crate::cli::ranks::RankArgs;
use crate::cli::sweep::Sweep;
use crate::error::Error;

/// The flags of all of them.
#[derive(Debug, Clone, Args)]
pub(crate) struct PairArgs {
    /// Multiply the size by this at each step
    #[arg(
        short = 'f', long = "stepfactor", value_name = "N", default_value_t = 4,
        value_parser = clap::value_parser!(u64).range(2..)
    )]
    stepfactor: u64,
    /// Requests of each size
    #[arg(
        short = 'n', long = "iters", value_name = "N", default_value_t = 1000,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub(crate) iterations: u64,
    /// Requests of each size before those
    #[arg(
        short = 'w',
        long = "warmup_iters",
        alias = "warmup-iters",
        value_name = "N",
        default_value_t = 100
    )]
    pub(crate) warm_up: u64,
    /// Which rails: all that lead from one rank to the other, the best, or each alone and then all
    /// together
    #[arg(long, value_enum, default_value_t = Rails::All)]
    pub(crate) rails: Rails,
    /// Which memory is sent and received
    #[arg(long, value_enum, default_value_t = MemoryKind::Host)]
    pub(crate) memory: MemoryKind,
    /// Print the results as one JSON document at the end, and no table
    #[arg(long)]
    pub(crate) json: bool,
    /// Seconds in which nothing moves, after which the run times out (exit 4)
    #[arg(
        short = 'T', long = "timeout", value_name = "SECONDS", default_value_t = 30,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    timeout: u64,
    #[command(flatten)]
    pub(crate) ranks: RankArgs,
}

/// The flags of the commands that measure bandwidth.
#[derive(Debug, Clone, Args)]
pub(crate) struct LoadArgs {
    /// First size: a number with K, M or G (binary)
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", default_value = "64K", value_parser = size::parse)]
    pub(crate) minbytes: u64,
    /// Last size
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", default_value = "4M", value_parser = size::parse)]
    pub(crate) maxbytes: u64,
    /// Both ranks at once
    #[arg(long)]
    pub(crate) bidirectional: bool,
    /// Start no further request of a size after this time
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) seconds: Option<u64>,
}

/// `--rails`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rails {
    All,
    One,
    Each,
}

impl Rails {
    /// The number of rails that are used.
    pub(crate) fn used(self, found: usize) -> usize {
        match self {
            Self::All | Self::Each => found,
            Self::One => found.min(1),
        }
    }

    /// The rails of each measurement, among the rails in use.
    pub(crate) fn sets(self, used: usize) -> Vec<Range<usize>> {
        let all = 0..used;
        match self {
            Self::Each if used > 1 => (0..used).map(|one| one..one + 1).chain([all]).collect(),
            _ => vec![all],
        }
    }
}

impl LoadArgs {
    /// When no further request starts in a measurement that starts now.
    pub(crate) fn end(&self) -> Option<Instant> {
        self.seconds
            .map(|seconds| Instant::now() + Duration::from_secs(seconds))
    }

    /// Whether a rank sends.
    pub(crate) fn drives(&self, rank: usize) -> bool {
        rank == 0 || self.bidirectional
    }

    /// In words.
    pub(crate) fn direction(&self) -> &'static str {
        if self.bidirectional {
            "both ways"
        } else {
            "one way"
        }
    }
}

impl PairArgs {
    /// The sizes; a request has at most `most` bytes.
    pub(crate) fn sweep(&self, min: u64, max: u64, most: u64) -> Result<Sweep, Error> {
        if min == 0 || min > max {
            return Err(Error::usage(format!(
                "-b {min} -e {max}: the first size must be at least 1 and at most the last"
            )));
        }
        if max > most {
            return Err(Error::usage(format!(
                "-e {max}: a request has at most {}",
                size::human(most)
            )));
        }
        Ok(Sweep {
            min,
            max,
            factor: self.stepfactor,
            step: 0,
        })
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        pair: PairArgs,
    }

    #[test]
    fn memory_is_the_hosts_unless_it_is_asked_for() {
        let parsed = |args: &[&str]| {
            let words = ["rdma_bw"].iter().chain(args);
            Program::try_parse_from(words).map(|program| program.pair.memory)
        };
        assert_eq!(parsed(&[]).unwrap(), MemoryKind::Host);
        assert_eq!(parsed(&["--memory", "host"]).unwrap(), MemoryKind::Host);
        assert_eq!(parsed(&["--memory", "pinned"]).unwrap(), MemoryKind::Pinned);
        let said = parsed(&["--memory", "device"]).unwrap_err().to_string();
        assert!(said.contains("[possible values: host, pinned]"), "{said}");
    }
}
