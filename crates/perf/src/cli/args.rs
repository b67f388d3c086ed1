//! The command line: nccl-tests' flags, and our own.

use std::path::PathBuf;

use clap::{ArgAction, Parser, ValueEnum};
use spark_ccl::{AlgorithmChoice, Backend};
use spark_ccl_console::notation::size;

use crate::call::collective::Collective;
use crate::cli::help::{AFTER_HELP, COMMANDS};
use crate::cli::ranks::RankArgs;
use crate::cli::values::{BufferUse, Plant};

/// Measures a collective over a range of sizes and checks every result.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "spark-perf",
    version,
    disable_version_flag = true,
    before_help = COMMANDS,
    after_long_help = AFTER_HELP,
    after_help = "More with --help.",
    args_override_self = true
)]
pub(crate) struct MeasureArgs {
    /// What to measure
    #[arg(value_enum, hide_possible_values = false)]
    pub(crate) collective: Collective,

    /// Print the version (-V is a flag of nccl-tests)
    #[arg(long, action = ArgAction::Version)]
    version: Option<bool>,

    #[command(flatten)]
    pub(crate) ranks: RankArgs,

    /// What executes the collectives, and where [default: nccl if a GPU and NCCL are found, and no
    /// other flag asks for host memory]
    #[arg(long, value_enum, value_name = "BACKEND", help_heading = "Ranks")]
    pub(crate) backend: Option<BackendArg>,
    /// A line for the header: `measure/backend.rs` passes it to the processes that it starts.
    #[arg(long, hide = true)]
    pub(crate) note: Option<String>,

    #[command(flatten)]
    pub(crate) sizes: SizeArgs,
    #[command(flatten)]
    pub(crate) operation: OperationArgs,
    #[command(flatten)]
    pub(crate) timing: TimingArgs,
    #[command(flatten)]
    pub(crate) checks: CheckArgs,
    #[command(flatten)]
    pub(crate) reports: ReportArgs,
    #[command(flatten)]
    pub(crate) gpus: GpuArgs,
}

/// The sizes to measure.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Sizes", rename_all = "snake_case")]
pub(crate) struct SizeArgs {
    /// First size: a number with K, M or G (binary)
    #[arg(
        short = 'b', long, value_name = "SIZE", default_value = "32M",
        value_parser = size::parse, allow_negative_numbers = true
    )]
    pub(crate) minbytes: u64,
    /// Last size
    #[arg(
        short = 'e', long, value_name = "SIZE", default_value = "32M",
        value_parser = size::parse, allow_negative_numbers = true
    )]
    pub(crate) maxbytes: u64,
    /// Multiply the size by this at each step; 1: add -i instead
    #[arg(
        short = 'f', long, value_name = "N", default_value_t = 1, value_parser = parse_factor,
        allow_negative_numbers = true
    )]
    pub(crate) stepfactor: u64,
    /// Add this to the size at each step, if -f is 1
    #[arg(
        short = 'i', long, value_name = "SIZE", default_value = "1M",
        value_parser = size::parse, allow_negative_numbers = true
    )]
    pub(crate) stepbytes: u64,
}

/// What is called, on what.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Operation", rename_all = "snake_case")]
pub(crate) struct OperationArgs {
    /// Operation: sum, prod, max, min, avg, mulsum (a factor per rank, then sum) or all
    #[arg(short = 'o', long, value_name = "OP", default_value = "sum")]
    pub(crate) op: String,
    /// Element type: int8 uint8 int32 uint32 int64 uint64 half float double bfloat16 f8e4m3 f8e5m2,
    /// or all
    #[arg(short = 'd', long, value_name = "TYPE", default_value = "float")]
    pub(crate) datatype: String,
    /// Root rank; -1: every rank in turn
    #[arg(
        short = 'r',
        long,
        value_name = "RANK",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    pub(crate) root: i64,
    /// Memory of the buffers [default: ordinary] (0 and 1 mean what -M 0 and -M 1 mean)
    #[arg(long, value_enum, value_name = "KIND")]
    pub(crate) memory: Option<MemoryArg>,
    /// Data path: staged through slots, or straight between registered buffers
    #[arg(long, value_enum, value_name = "PATH")]
    pub(crate) path: Option<PathArg>,
    /// Algorithm instead of the tuner's choice, as the header names them: ring, direct, chain, ...
    #[arg(long, value_name = "NAME")]
    pub(crate) algo: Option<AlgorithmChoice>,
    /// Print how each size is done and why, and measure nothing: the algorithm; on GPUs, the path
    /// and the kernel or the pieces
    #[arg(long)]
    pub(crate) explain: bool,
    /// Shift the buffers by N elements, off their alignment
    #[arg(short = 'u', long, value_name = "N", default_value_t = 0)]
    pub(crate) unalign: usize,
}

/// How calls are timed.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Timing", rename_all = "snake_case")]
pub(crate) struct TimingArgs {
    /// Timed iterations
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
    pub(crate) iters: usize,
    /// Calls in each iteration; the time is divided by n x m
    #[arg(
        short = 'm',
        long,
        alias = "agg-iters",
        value_name = "N",
        default_value_t = 1
    )]
    pub(crate) agg_iters: usize,
    /// Warm-up calls for every size, doubling from -b to -e, before the first line (at least 64 of
    /// short calls, unless N is 0); besides, each line has untimed calls of its own
    #[arg(
        short = 'w',
        long,
        alias = "warmup-iters",
        value_name = "N",
        default_value_t = 1
    )]
    pub(crate) warmup_iters: usize,
    /// Runs of the whole sweep; 0: until stopped
    #[arg(
        short = 'N',
        long,
        alias = "run-cycles",
        value_name = "N",
        default_value_t = 1
    )]
    pub(crate) run_cycles: u64,
    /// Which memory successive calls use. hot: the same in every call, so that it stays in the
    /// caches if it fits; SIZE: each buffer has this size, and calls use its parts in turn, so that
    /// caches smaller than it do not help. By default the buffers have the last size of the sweep,
    /// and calls use their parts in turn, as in nccl-tests
    #[arg(long, value_name = "hot|SIZE")]
    pub(crate) buffers: Option<BufferUse>,
    /// 1: barrier after each call; 2: no barrier, but wait for the GPUs; 3: barrier after each
    /// iteration, not timed
    #[arg(
        short = 'z', long, value_name = "0-3", default_value_t = 0,
        value_parser = clap::value_parser!(u8).range(0..=3)
    )]
    pub(crate) blocking: u8,
    /// Time of: 0 rank 0; 1 the average; 2 the fastest; 3 the slowest rank
    #[arg(
        short = 'a', long, value_name = "0-3", default_value_t = 1,
        value_parser = clap::value_parser!(u8).range(0..=3)
    )]
    pub(crate) average: u8,
    /// Seconds after which an operation times out (exit 4); 0: the library's default
    #[arg(short = 'T', long, value_name = "SECONDS", default_value_t = 0)]
    pub(crate) timeout: u64,
    /// 1: time each iteration (maximum over ranks), report minimum, maximum, 99th percentile,
    /// variation
    #[arg(
        short = 'I', long, alias = "per-iter-timing", value_name = "0|1",
        default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1)
    )]
    pub(crate) per_iter_timing: u8,
    /// Leading iterations that the summary of -I leaves out
    #[arg(
        short = 'K',
        long,
        alias = "per-iter-skip",
        value_name = "N",
        default_value_t = 0
    )]
    pub(crate) per_iter_skip: usize,
    /// 1: the time column is the processor time of a rank, user and system, including barriers of
    /// -z; on GPUs the time until a call is enqueued; bandwidths still use the elapsed time
    #[arg(
        short = 'C', long, alias = "report-cputime", value_name = "0|1",
        default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1)
    )]
    pub(crate) report_cputime: u8,
}

/// How results are checked.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Check", rename_all = "snake_case")]
pub(crate) struct CheckArgs {
    /// Checked runs after timing; 0: no check
    #[arg(short = 'c', long, value_name = "N", default_value_t = 1)]
    pub(crate) check: usize,
    /// Self test of the check: corrupt element INDEX of rank RANK's result before each check
    #[arg(long, value_name = "RANK:INDEX")]
    pub(crate) plant: Option<Plant>,
}

/// What is reported, and where.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Reports", rename_all = "snake_case")]
pub(crate) struct ReportArgs {
    /// Write a JSON report; if the file exists, FILE.0, FILE.1, ... is used instead. -: print it,
    /// and no table
    #[arg(short = 'J', long, alias = "output-file", value_name = "FILE.json")]
    pub(crate) output_file: Option<PathBuf>,
    /// Draw time and bus bandwidth against size
    #[arg(long, value_name = "FILE.svg|.png")]
    pub(crate) plot: Option<PathBuf>,
    /// Compare this run with the JSON report of an earlier one
    #[arg(long, value_name = "FILE.json")]
    pub(crate) compare: Option<PathBuf>,
    /// 1: add a column with the time of day (UTC)
    #[arg(
        short = 'S', long, alias = "report-timestamps", value_name = "0|1",
        default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1)
    )]
    pub(crate) report_timestamps: u8,
    /// 1: report the memory that the run used
    #[arg(
        short = 'M', long, value_name = "0|1", default_value_t = 0,
        value_parser = clap::value_parser!(u8).range(0..=1)
    )]
    pub(crate) memory_report: u8,
}

/// What only GPUs have.
#[derive(Debug, Clone, clap::Args)]
#[command(
    next_help_heading = "For GPUs (accepted, with little effect on host memory)",
    rename_all = "snake_case"
)]
pub(crate) struct GpuArgs {
    /// 1: register buffers with NCCL; 2: as symmetric windows; in host memory, both mean --memory
    /// registered
    #[arg(
        short = 'R', long, alias = "local-register", value_name = "0-2",
        default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2)
    )]
    pub(crate) local_register: u8,
    /// Threads start in parallel
    #[arg(short = 'p', long, alias = "parallel-init", value_name = "0|1")]
    pub(crate) parallel_init: Option<u8>,
    /// Null stream
    #[arg(short = 'y', long, alias = "stream-null", value_name = "0|1")]
    pub(crate) stream_null: Option<u8>,
    /// Capture all iterations in a CUDA graph, and launch it N times
    #[arg(short = 'G', long, value_name = "N")]
    pub(crate) cudagraph: Option<u32>,
    /// CTA policy
    #[arg(short = 'x', long, alias = "cta-policy", value_name = "0-2")]
    pub(crate) cta_policy: Option<u32>,
    /// Device implementation
    #[arg(short = 'D', long, alias = "device-implementation", value_name = "N")]
    pub(crate) device_implementation: Option<u32>,
    /// CTAs of the device implementation
    #[arg(short = 'V', long, alias = "device-cta-count", value_name = "N")]
    pub(crate) device_cta_count: Option<u32>,
}

/// `--backend`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendArg {
    /// The library's own engine, in host memory
    Host,
    /// The library's own engine, on GPUs: kernels of our own
    Engine,
    /// NVIDIA's NCCL, on GPUs
    Nccl,
    /// Both on GPUs, in turns at each size, and the ratio of their times
    #[value(name = "engine,nccl")]
    EngineAndNccl,
}

impl BackendArg {
    /// The executors, which take turns if there are several.
    pub(crate) fn backends(self) -> &'static [Backend] {
        match self {
            Self::Host => &[Backend::Host],
            Self::Engine => &[Backend::Engine],
            Self::Nccl => &[Backend::Nccl],
            Self::EngineAndNccl => &[Backend::Engine, Backend::Nccl],
        }
    }
}

/// `--memory`, which is both our own flag and the long name of nccl-tests' `-M`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum MemoryArg {
    /// Plain allocations
    Ordinary,
    /// Memory that the ranks of a host share (`Communicator::alloc`)
    Registered,
    /// nccl-tests: no memory report
    #[value(name = "0", hide = true)]
    ReportOff,
    /// nccl-tests: memory report
    #[value(name = "1", hide = true)]
    ReportOn,
}

/// `--path`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PathArg {
    /// Staged through slots
    Safe,
    /// Straight between registered buffers
    ZeroCopy,
    /// Whatever is fastest
    Auto,
}

fn parse_factor(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| "expected a whole number, at least 1, such as 2".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn definition_is_consistent() {
        MeasureArgs::command().debug_assert();
    }

    #[test]
    fn short_and_long_flags() {
        let args = MeasureArgs::try_parse_from([
            "spark-perf",
            "all_reduce",
            "-b",
            "8",
            "-e",
            "1G",
            "-f",
            "2",
            "-r",
            "-1",
            "--agg_iters",
            "3",
            "--warmup-iters",
            "2",
        ])
        .unwrap();
        assert_eq!(
            (
                args.sizes.minbytes,
                args.sizes.maxbytes,
                args.sizes.stepfactor,
                args.operation.root
            ),
            (8, 1 << 30, 2, -1)
        );
        assert_eq!((args.timing.agg_iters, args.timing.warmup_iters), (3, 2));
    }

    #[test]
    fn bad_values() {
        for bad in [
            &["-f", "1.5"][..],
            &["-b", "x"],
            &["-z", "4"],
            &["-n", "-1"],
            &["--plant", "3"],
            &["--nonsense"],
            &["--memory", "2"],
        ] {
            let all = ["spark-perf", "all_reduce"].iter().chain(bad).copied();
            assert!(MeasureArgs::try_parse_from(all).is_err(), "{bad:?}");
        }
        assert!(MeasureArgs::try_parse_from(["spark-perf", "allreduce_all"]).is_err());
    }
}
