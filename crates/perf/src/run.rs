//! The run of one thread: header, sweep, footer and files.

use std::io::{self, Write};
use std::path::Path;

use spark_ccl::Communicator;

use crate::args::Args;
use crate::bench::{self, Findings, Platform, Sink};
use crate::error::{Error, exit};
use crate::host;
use crate::hosts;
use crate::memory;
use crate::options::Options;
use crate::progress::Progress;
use crate::report::compare::Earlier;
use crate::report::json::{Config, DeviceEntry, Report};
use crate::report::plot::{self, Chart};
use crate::report::table::{self, Columns};
use crate::report::{Row, Totals};
use crate::size::human;
use crate::sweep::Sweep;

/// Runs as one of the threads that `comm` connects, on its part of the platform; returns the
/// process's exit code.
pub(crate) fn thread<G: Platform>(
    comm: &Communicator,
    platform: &mut G,
    args: &Args,
    options: &Options,
) -> Result<u8, Error> {
    if args.explain {
        explain(comm, platform, options)
    } else if comm.rank() == 0 {
        reporter(comm, platform, args, options)
    } else {
        non_reporter(comm, platform, options)
    }
}

/// Rank 0 prints the algorithm for every size.
fn explain(comm: &Communicator, platform: &impl Platform, options: &Options) -> Result<u8, Error> {
    if comm.rank() == 0 {
        let sizes: Vec<_> = options.sweep.sizes().collect();
        print(&(platform.lines(options, &sizes)?.join("\n") + "\n"))?;
    }
    comm.barrier().run()?;
    Ok(0)
}

/// Runs on any thread but the first.
fn non_reporter(
    comm: &Communicator,
    platform: &mut impl Platform,
    options: &Options,
) -> Result<u8, Error> {
    let (options, _) = fit_to_memory(platform, options)?;
    let findings = bench::run(comm, platform, &options, &mut NullSink)?;
    hosts::rails(comm)?;
    comm.barrier().run()?;
    Ok(code(&totals(&findings)))
}

struct NullSink;

impl Sink for NullSink {
    fn row(&mut self, _: Row) -> Result<(), Error> {
        Ok(())
    }
}

/// Runs on rank 0, which prints.
fn reporter(
    comm: &Communicator,
    platform: &mut impl Platform,
    args: &Args,
    options: &Options,
) -> Result<u8, Error> {
    let earlier = args
        .compare
        .as_deref()
        .map(Earlier::read)
        .transpose()
        .map_err(Error::Usage)?;
    let json = args
        .output_file
        .as_deref()
        .map(|path| {
            Report::create(path).map_err(Error::system(format!("creating {}", path.display())))
        })
        .transpose()?;
    let mut reporter = Reporter {
        columns: options.columns,
        progress: None,
        rows: Vec::new(),
        json,
    };
    let result = reporter.measure(comm, platform, args, options);
    let totals = match result {
        Ok(totals) => totals,
        Err(error) => {
            // Saves what was measured. A failure to save must not hide the error itself.
            let _ = reporter.save(None, &[error.to_string()]);
            return Err(error);
        }
    };
    reporter.save(Some(&totals), &[])?;
    reporter.plot(args, platform)?;
    let mut closing = table::footer(&totals, &options.collective.program());
    if let Some(earlier) = earlier {
        closing.push_str(&earlier.table(&reporter.rows));
    }
    if options.memory_report {
        closing.push_str(&memory_line(options, platform));
    }
    closing.push_str(&rails_line(hosts::rails(comm)?));
    print(&closing)?;
    comm.barrier().run()?;
    Ok(code(&totals))
}

struct Reporter {
    columns: Columns,
    progress: Option<Progress>,
    rows: Vec<Row>,
    json: Option<Report>,
}

impl Reporter {
    fn measure(
        &mut self,
        comm: &Communicator,
        platform: &mut impl Platform,
        args: &Args,
        options: &Options,
    ) -> Result<Totals, Error> {
        let (options, lowered) = fit_to_memory(platform, options)?;
        print(&header(platform, args, &options, lowered.as_deref())?)?;
        if let Some(json) = &mut self.json {
            print(&format!(
                "# Writing JSON output to {}\n",
                json.path().display()
            ))?;
            json.configure(config(platform, args, &options), options.columns.cpu_time);
            json.save(&[], None, &[])
                .map_err(Error::system(format!("writing {}", json.path().display())))?;
        }
        print(&table::column_heads(self.columns))?;
        self.progress = Some(Progress::new(lines(&options, platform.ranks())));
        let findings = bench::run(comm, platform, &options, self);
        self.progress = None;
        Ok(totals(&findings?))
    }

    fn save(&mut self, totals: Option<&Totals>, errors: &[String]) -> Result<(), Error> {
        let Some(json) = &mut self.json else {
            return Ok(());
        };
        json.save(&self.rows, totals, errors)
            .map_err(Error::system(format!("writing {}", json.path().display())))
    }

    fn plot(&self, args: &Args, platform: &impl Platform) -> Result<(), Error> {
        let Some(path) = &args.plot else {
            return Ok(());
        };
        let title = format!(
            "{}, {} ranks, {}",
            args.collective.name(),
            platform.ranks(),
            platform.name()
        );
        draw(path, &Chart::of_rows(title, &self.rows))
    }
}

impl Sink for Reporter {
    fn row(&mut self, row: Row) -> Result<(), Error> {
        let text = table::row(&row, self.columns) + "\n";
        self.rows.push(row);
        match &self.progress {
            Some(progress) => progress.line(|| print(&text)),
            None => print(&text),
        }
    }
}

/// Refuses a run for which this host has too little memory, before any of its `ranks` starts.
pub(crate) fn check_memory(options: &Options, ranks: usize) -> Result<(), Error> {
    let limits = vec![memory::limits(); ranks];
    let need = |bytes| host::need(options, ranks, bytes);
    memory::clamp(options.sweep, &limits, need)
        .map(drop)
        .map_err(Error::Usage)
}

/// Refuses invalid file arguments before anything runs.
pub(crate) fn check_files(args: &Args) -> Result<(), Error> {
    if let Some(path) = &args.plot {
        plot_kind(path)?;
    }
    if let Some(path) = &args.output_file
        && !path
            .extension()
            .is_some_and(|ending| ending.eq_ignore_ascii_case("json"))
    {
        return Err(Error::Usage(format!(
            "-J {}: the name must end in .json",
            path.display()
        )));
    }
    if let Some(path) = &args.compare {
        Earlier::read(path).map_err(Error::Usage)?;
    }
    Ok(())
}

/// Draws a plot into a file.
pub(crate) fn draw(path: &Path, chart: &Chart) -> Result<(), Error> {
    plot::write(path, plot_kind(path)?, chart).map_err(|error| {
        Error::system(format!("writing {}", path.display()))(io::Error::other(error.to_string()))
    })
}

/// The format that a plot's file name asks for.
pub(crate) fn plot_kind(path: &Path) -> Result<plot::Kind, Error> {
    plot::Kind::of(path).ok_or_else(|| {
        Error::Usage(format!(
            "--plot {}: the name must end in .svg or .png",
            path.display()
        ))
    })
}

/// The options with the sweep lowered to what fits into memory, and a line that says so. If several
/// types are requested, unsupported ones are dropped.
fn fit_to_memory(
    platform: &impl Platform,
    options: &Options,
) -> Result<(Options, Option<String>), Error> {
    let mut options = options.clone();
    if options.dtypes.len() > 1 {
        options.dtypes.retain(|&dtype| platform.supports(dtype));
    }
    let need = |bytes| platform.need(&options, bytes);
    let (sweep, line) =
        memory::clamp(options.sweep, platform.limits(), need).map_err(Error::Usage)?;
    options.sweep = sweep;
    Ok((options, line))
}

fn header(
    platform: &impl Platform,
    args: &Args,
    options: &Options,
    lowered: Option<&str>,
) -> Result<String, Error> {
    let mut lines = vec![
        format!(
            "# spark-perf version {} ({})",
            env!("CARGO_PKG_VERSION"),
            spark_ccl::VERSION
        ),
        format!(
            "# Collective test starting: {}",
            options.collective.program()
        ),
        settings_line(args, options),
    ];
    lines.extend(
        platform
            .nccl_version()
            .map(|version| format!("# NCCL version {version}")),
    );
    lines.extend(
        options
            .notes
            .iter()
            .chain(lowered.map(str::to_owned).as_ref())
            .map(|note| format!("# {note}")),
    );
    lines.push("#".into());
    lines.push("# Using devices".into());
    lines.extend(platform.devices().iter().map(table::device));
    lines.push("#".into());
    let mut sizes = vec![options.sweep.min, options.sweep.last()];
    sizes.dedup();
    lines.extend(platform.lines(options, &sizes)?);
    Ok(lines.join("\n") + "\n")
}

/// The header's line with the arguments, as nccl-tests prints it.
fn settings_line(args: &Args, options: &Options) -> String {
    let Sweep {
        min,
        max,
        factor,
        step,
    } = options.sweep;
    let (step, unit) = if factor > 1 {
        (factor, "factor")
    } else {
        (step, "bytes")
    };
    format!(
        "# nThread {} nGpus {} minBytes {min} maxBytes {max} step: {step}({unit}) \
         warmup iters: {} iters: {} agg iters: {} validation: {} graph: {} unalign: {}",
        args.ranks.nthreads.unwrap_or(1),
        args.ranks.ngpus.unwrap_or(1),
        options.warm_up,
        options.iterations,
        options.aggregated,
        options.checks,
        options.graph_launches,
        options.unalign,
    )
}

fn config(platform: &impl Platform, args: &Args, options: &Options) -> Config {
    let Sweep {
        min,
        max,
        factor,
        step,
    } = options.sweep;
    Config {
        nthreads: args.ranks.nthreads.unwrap_or(1),
        ngpus: args.ranks.ngpus.unwrap_or(1),
        minimum_bytes: min,
        maximum_bytes: max,
        step_factor: (factor > 1).then_some(factor),
        step_bytes: (factor <= 1).then_some(step),
        warmup_iters: options.warm_up,
        iterations: options.iterations,
        aggregated_iterations: options.aggregated,
        validation: options.checks,
        graph: options.graph_launches,
        blocking_collectives: (args.blocking > 0).into(),
        per_iter_timing: options.per_iteration.is_some().into(),
        per_iter_skip: options.per_iteration.unwrap_or(0),
        parallel_init: (args.parallel_init.is_some_and(|value| value > 0)).into(),
        collective: options.collective.name(),
        memory: platform.memory(options),
        nccl_version: platform.nccl_version().map_or(0, version_code),
        devices: platform.devices().iter().map(DeviceEntry::from).collect(),
    }
}

/// The number that NCCL uses for a version: 22809 for 2.28.9.
pub(crate) fn version_code(text: &str) -> u32 {
    text.split('.')
        .map(|part| part.parse().unwrap_or(0))
        .fold(0, |code: u32, part: u32| code * 100 + part)
}

/// The number of rows of the whole table; 0 if it is endless.
fn lines(options: &Options, ranks: usize) -> u64 {
    let per_type = options.ops.len().max(1) * options.roots(ranks).len();
    let sweeps = options
        .cycles
        .saturating_mul((options.dtypes.len() * per_type) as u64);
    options.sweep.len().saturating_mul(sweeps)
}

fn totals(findings: &Findings) -> Totals {
    let required = std::env::var("NCCL_TESTS_MIN_BW")
        .ok()
        .and_then(|text| text.trim().parse().ok());
    Totals {
        out_of_bounds: findings.out_of_bounds,
        average_bus_bw: findings.average_bus_bw(),
        required_bus_bw: required,
    }
}

fn code(totals: &Totals) -> u8 {
    if totals.out_of_bounds > 0 || totals.bandwidth_okay() == Some(false) {
        exit::WRONG
    } else {
        0
    }
}

fn memory_line(options: &Options, platform: &impl Platform) -> String {
    let buffers = human(platform.need(options, options.sweep.last()));
    let peak = memory::peak_resident().map_or_else(|| "unknown".to_owned(), human);
    format!(
        "# {:<20} : buffers {buffers} a rank | peak resident of rank 0's process {peak}\n",
        "Memory usage"
    )
}

/// Reports rails that failed during the run, if any.
fn rails_line((dropped, returned): (u64, u64)) -> String {
    if dropped == 0 {
        return String::new();
    }
    format!(
        "# {:<20} : {dropped} dropped, {returned} came back; the others carried on\n",
        "RDMA rails"
    )
}

pub(crate) fn print(text: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(Error::system("writing to standard output"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_as_numbers() {
        assert_eq!(version_code("2.28.9"), 22809);
        assert_eq!(version_code("2.18.1"), 21801);
    }

    #[test]
    fn the_report_says_that_rails_were_dropped() {
        assert_eq!(rails_line((0, 0)), "");
        let line = rails_line((2, 1));
        assert!(line.contains("2 dropped, 1 came back"), "{line}");
    }
}
