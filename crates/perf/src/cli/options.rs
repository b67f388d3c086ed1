//! Checked arguments. Refuses all arguments that can be refused without knowing the ranks.

use std::path::PathBuf;
use std::time::Duration;

use spark_ccl::{AlgorithmChoice, Backend, DType, Path, ReduceOp};

use crate::call::collective::Collective;
use crate::call::op;
use crate::cli::args::{BackendArg, MeasureArgs, MemoryArg, PathArg};
use crate::cli::ranks::RankCounts;
use crate::cli::sweep::Sweep;
use crate::cli::values::{BufferUse, Plant};
use crate::error::Error;
use crate::report::table::Columns;

/// Far more than any alignment that matters.
const MOST_UNALIGNED: usize = 1 << 20;

/// A checked command line.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) collective: Collective,
    /// The numbers of ranks.
    pub(crate) ranks: RankCounts,
    /// Whether to print how each size is done, and measure nothing.
    pub(crate) explain: bool,
    pub(crate) links: LinkOptions,
    /// The executors of the calls; several take turns at each size.
    pub(crate) backends: &'static [Backend],
    pub(crate) sweep: Sweep,
    pub(crate) dtypes: Vec<DType>,
    /// Empty for collectives that do not reduce.
    pub(crate) ops: Vec<ReduceOp>,
    pub(crate) root: Root,
    pub(crate) registered: bool,
    /// `None`: as large as the last size of the sweep needs, and used in turn.
    pub(crate) buffers: Option<BufferUse>,
    pub(crate) iterations: usize,
    pub(crate) aggregated: usize,
    pub(crate) warm_up: usize,
    /// The launches of a graph of all iterations; 0 for no graph.
    pub(crate) graph_launches: u32,
    /// Whether calls use the null stream.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code))]
    pub(crate) null_stream: bool,
    /// The registration with the backend.
    #[cfg_attr(not(any(feature = "cuda", test)), expect(dead_code))]
    pub(crate) registration: Registered,
    /// 0 means endless.
    pub(crate) cycles: u64,
    pub(crate) blocking: Blocking,
    pub(crate) average: Average,
    pub(crate) checks: usize,
    pub(crate) unalign: usize,
    pub(crate) per_iteration: Option<usize>,
    pub(crate) columns: Columns,
    pub(crate) reports: Reports,
    pub(crate) plant: Option<Plant>,
    /// Lines of the header about arguments without effect.
    pub(crate) notes: Vec<String>,
}

/// The settings of communicators.
#[derive(Debug, Clone)]
pub(crate) struct LinkOptions {
    /// `None`: the library's default.
    pub(crate) timeout: Option<Duration>,
    pub(crate) path: Option<Path>,
    pub(crate) algorithms: Option<AlgorithmChoice>,
}

impl LinkOptions {
    fn new(args: &MeasureArgs) -> Self {
        let seconds = args.timing.timeout;
        Self {
            timeout: (seconds > 0).then(|| Duration::from_secs(seconds)),
            path: args.operation.path.map(|path| match path {
                PathArg::Safe => Path::Safe,
                PathArg::ZeroCopy => Path::ZeroCopy,
                PathArg::Auto => Path::Auto,
            }),
            algorithms: args.operation.algo.clone(),
        }
    }
}

/// The reports besides the table.
#[derive(Debug, Clone)]
pub(crate) struct Reports {
    pub(crate) json: Option<PathBuf>,
    pub(crate) plot: Option<PathBuf>,
    /// The JSON report of an earlier run.
    pub(crate) earlier: Option<PathBuf>,
    /// Whether the used memory is reported.
    pub(crate) memory: bool,
    /// `-p`, which the JSON report repeats.
    pub(crate) parallel_init: bool,
}

impl Reports {
    fn new(args: &MeasureArgs) -> Self {
        let MeasureArgs {
            reports,
            operation,
            gpus,
            ..
        } = args;
        Self {
            json: reports.output_file.clone(),
            plot: reports.plot.clone(),
            earlier: reports.compare.clone(),
            memory: reports.memory_report == 1 || operation.memory == Some(MemoryArg::ReportOn),
            parallel_init: gpus.parallel_init.is_some_and(|value| value > 0),
        }
    }
}

/// `-r`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Root {
    /// One rank.
    Rank(usize),
    /// All in turn.
    Each,
}

/// `-R`: how buffers are registered with the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Registered {
    No,
    Local,
    Symmetric,
}

impl Registered {
    fn new(flag: u8) -> Self {
        match flag {
            0 => Self::No,
            1 => Self::Local,
            _ => Self::Symmetric,
        }
    }
}

/// `-z`: where barriers and waits for GPUs are placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blocking {
    /// Neither barriers nor waits.
    None,
    /// No barriers, but GPUs are waited for after each call.
    Wait,
    /// A barrier after each call, which is timed.
    Call,
    /// A barrier after each iteration, which is not timed.
    Iteration,
}

impl Blocking {
    fn new(flag: u8) -> Self {
        match flag {
            1 => Self::Call,
            2 => Self::Wait,
            3 => Self::Iteration,
            _ => Self::None,
        }
    }
}

/// `-a`: which rank's time is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Average {
    First,
    Mean,
    Min,
    Max,
}

impl Average {
    fn new(flag: u8) -> Self {
        match flag {
            0 => Self::First,
            2 => Self::Min,
            3 => Self::Max,
            _ => Self::Mean,
        }
    }
}

impl Options {
    /// Checks the arguments.
    pub(crate) fn new(args: &MeasureArgs, backend: BackendArg) -> Result<Self, Error> {
        let sweep = sweep(args)?;
        let (per_iteration, mut notes) = per_iteration(args)?;
        match backend {
            BackendArg::Host => notes.extend(no_effect(args)),
            _ => on_gpus(args, backend)?,
        }
        check_counts(args)?;
        Ok(Self {
            collective: args.collective,
            ranks: args.ranks.checked()?,
            explain: args.operation.explain,
            links: LinkOptions::new(args),
            backends: backend.backends(),
            sweep,
            dtypes: dtypes(&args.operation.datatype)?,
            ops: ops(args)?,
            root: root(args)?,
            registered: args.operation.memory == Some(MemoryArg::Registered)
                || args.gpus.local_register > 0
                || args.operation.path == Some(PathArg::ZeroCopy),
            buffers: args.timing.buffers,
            iterations: args.timing.iters,
            aggregated: args.timing.agg_iters,
            warm_up: args.timing.warmup_iters,
            graph_launches: match backend {
                BackendArg::Host => 0,
                _ => args.gpus.cudagraph.unwrap_or(0),
            },
            null_stream: args.gpus.stream_null.is_some_and(|n| n > 0),
            registration: Registered::new(args.gpus.local_register),
            cycles: args.timing.run_cycles,
            blocking: Blocking::new(args.timing.blocking),
            average: Average::new(args.timing.average),
            checks: args.checks.check,
            unalign: args.operation.unalign,
            per_iteration,
            columns: Columns {
                backends: backend.backends().len() > 1,
                per_iteration: per_iteration.is_some(),
                cpu_time: args.timing.report_cputime == 1,
                timestamps: args.reports.report_timestamps == 1,
            },
            reports: Reports::new(args),
            plant: args.checks.plant,
            notes,
        })
    }

    /// The ranks that are threads of one process, and share its processor time.
    pub(crate) fn ranks_per_process(&self) -> usize {
        self.ranks.threads().saturating_mul(self.ranks.each())
    }

    /// Checks what depends on the number of ranks.
    pub(crate) fn check_ranks(&self, ranks: usize) -> Result<(), Error> {
        if let Root::Rank(root) = self.root
            && root >= ranks
        {
            return Err(Error::usage(format!(
                "-r {root}: the root must be one of the {ranks} ranks, 0 to {}",
                ranks - 1
            )));
        }
        if self.collective == Collective::Hypercube && !ranks.is_power_of_two() {
            return Err(Error::usage(format!(
                "hypercube needs a power of two of ranks, and there are {ranks}"
            )));
        }
        if let Some(plant) = self.plant
            && plant.rank >= ranks
        {
            return Err(Error::usage(format!(
                "--plant: there is no rank {}; there are {ranks}",
                plant.rank
            )));
        }
        Ok(())
    }

    /// The roots to run with; a single unused 0 for collectives without a root.
    pub(crate) fn roots(&self, ranks: usize) -> Vec<usize> {
        match self.root {
            Root::Each if self.collective.operation().is_rooted() => (0..ranks).collect(),
            Root::Rank(root) if self.collective.operation().is_rooted() => vec![root],
            _ => vec![0],
        }
    }
}

fn check_counts(args: &MeasureArgs) -> Result<(), Error> {
    positive("-n", args.timing.iters)?;
    if args.operation.unalign > MOST_UNALIGNED {
        return Err(Error::usage(format!(
            "-u {}: at most {MOST_UNALIGNED} elements",
            args.operation.unalign
        )));
    }
    positive("-m", args.timing.agg_iters)?;
    if args
        .timing
        .agg_iters
        .checked_mul(args.timing.iters)
        .is_none()
    {
        return Err(Error::usage("-n times -m is too large".into()));
    }
    Ok(())
}

fn sweep(args: &MeasureArgs) -> Result<Sweep, Error> {
    let (min, max) = (args.sizes.minbytes, args.sizes.maxbytes);
    if min == 0 {
        return Err(Error::usage(
            "-b 0: the first size must be at least 1 byte".into(),
        ));
    }
    if min > max {
        return Err(Error::usage(format!(
            "the first size (-b, {min} bytes) is larger than the last (-e, {max} bytes); both are \
             32M unless given"
        )));
    }
    if args.sizes.stepfactor == 0 {
        return Err(Error::usage(
            "-f 0: the factor must be a whole number, at least 1".into(),
        ));
    }
    if args.sizes.stepfactor == 1 && args.sizes.stepbytes == 0 && min < max {
        return Err(Error::usage(
            "-i 0: the sweep would not end; give a step, or a factor with -f".into(),
        ));
    }
    Ok(Sweep {
        min,
        max,
        factor: args.sizes.stepfactor,
        step: args.sizes.stepbytes.max(1),
    })
}

fn dtypes(text: &str) -> Result<Vec<DType>, Error> {
    if text == "all" {
        return Ok(DType::ALL.to_vec());
    }
    match text.parse() {
        Ok(dtype) => Ok(vec![dtype]),
        Err(_) => Err(Error::usage(format!(
            "-d {text}: unknown type; expected {} or all",
            DType::ALL
                .iter()
                .map(|dtype| dtype.name())
                .collect::<Vec<_>>()
                .join(", ")
        ))),
    }
}

fn ops(args: &MeasureArgs) -> Result<Vec<ReduceOp>, Error> {
    let ops = if args.operation.op == "all" {
        ReduceOp::ALL.to_vec()
    } else {
        vec![op::parse(&args.operation.op).map_err(|error| Error::usage(format!("-o: {error}")))?]
    };
    Ok(if args.collective.operation().reduces() {
        ops
    } else {
        Vec::new()
    })
}

fn root(args: &MeasureArgs) -> Result<Root, Error> {
    match args.operation.root {
        -1 => Ok(Root::Each),
        root => usize::try_from(root)
            .map(Root::Rank)
            .map_err(|_| Error::usage(format!("-r {root}: expected a rank, or -1 for every rank"))),
    }
}

fn per_iteration(args: &MeasureArgs) -> Result<(Option<usize>, Vec<String>), Error> {
    let skip = args.timing.per_iter_skip;
    if args.timing.per_iter_timing == 0 {
        let note = (skip > 0).then(|| "-K has no effect without -I 1".to_owned());
        return Ok((None, note.into_iter().collect()));
    }
    if skip >= args.timing.iters {
        return Err(Error::usage(format!(
            "-K {skip}: must be less than the number of iterations (-n {})",
            args.timing.iters
        )));
    }
    Ok((Some(skip), Vec::new()))
}

/// One line for each given flag that has no effect on host memory.
fn no_effect(args: &MeasureArgs) -> Vec<String> {
    let flags = [
        (args.gpus.cudagraph.is_some_and(|n| n > 0), "-G (graphs)"),
        (args.gpus.cta_policy.is_some(), "-x (CTA policy)"),
        (
            args.gpus.device_implementation.is_some_and(|n| n > 0),
            "-D (device implementation)",
        ),
        (args.gpus.device_cta_count.is_some(), "-V (CTA count)"),
        (
            args.gpus.stream_null.is_some_and(|n| n > 0),
            "-y (null stream)",
        ),
    ];
    let mut notes: Vec<String> = flags
        .into_iter()
        .filter(|(given, _)| *given)
        .map(|(_, flag)| format!("{flag} has no effect on host memory"))
        .collect();
    if args.gpus.parallel_init.is_some_and(|n| n > 0) {
        notes.push("-p: threads always start in parallel".into());
    }
    if args.gpus.local_register > 0 {
        notes.push(format!(
            "-R {}: same as --memory registered",
            args.gpus.local_register
        ));
    }
    if args.operation.path == Some(PathArg::ZeroCopy)
        && args.operation.memory != Some(MemoryArg::Registered)
        && args.gpus.local_register == 0
    {
        notes.push(
            "--path zero-copy needs registered buffers: --memory registered is implied".into(),
        );
    }
    notes
}

/// Refuses arguments that do not work on GPUs, or not with this backend.
fn on_gpus(args: &MeasureArgs, backend: BackendArg) -> Result<(), Error> {
    let given = |value: Option<u32>| value.is_some_and(|n| n > 0);
    let graph = given(args.gpus.cudagraph);
    for (flag, other) in [
        ("-z", args.timing.blocking > 0),
        ("-y", args.gpus.stream_null.is_some_and(|n| n > 0)),
        ("-I", args.timing.per_iter_timing > 0),
    ] {
        if graph && other {
            return Err(Error::usage(format!(
                "-G with {flag}: while iterations are put into a graph nothing runs; leave one of \
                 them out"
            )));
        }
    }
    for (flag, what, asked) in [
        ("-x", "NCCL's CTA policies", args.gpus.cta_policy.is_some()),
        (
            "-D",
            "NCCL's device API",
            given(args.gpus.device_implementation),
        ),
        (
            "-V",
            "NCCL's device API",
            args.gpus.device_cta_count.is_some(),
        ),
    ] {
        if asked {
            return Err(Error::NotImplemented(format!(
                "{flag}: spark-perf does not offer {what}; leave it out"
            )));
        }
    }
    let register = args.gpus.local_register;
    if backend.backends().contains(&Backend::Engine) && register > 0 {
        return Err(Error::NotImplemented(format!(
            "-R {register}: the engine has nothing to register, since its kernels take any buffer \
             of their GPU, and no other GPU reaches that; leave it out"
        )));
    }
    Ok(())
}

fn positive(flag: &str, value: usize) -> Result<(), Error> {
    if value == 0 {
        Err(Error::usage(format!("{flag} 0: must be at least 1")))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
