//! The run of one thread: header, sweep, footer and files. Rank 0 reports.

use spark_ccl::Communicator;
use spark_ccl_console::{exit, plot::write, print};

use super::progress::Progress;
use crate::cli::options::{Options, Reports};
use crate::error::Error;
use crate::limits;
use crate::measure::bench::{self, Findings, Platform, Sink};
use crate::measure::header::{config, header, memory_line, rails_line};
use crate::ranks::hosts;
use crate::report::compare::Earlier;
use crate::report::json::JsonReport;
use crate::report::plot;
use crate::report::table::{self, Columns};
use crate::report::{Row, Totals};

/// Runs as one of the threads that `comm` connects, on its part of the platform; returns the
/// process's exit code.
pub(crate) fn thread<G: Platform>(
    comm: &Communicator,
    platform: &mut G,
    options: &Options,
) -> Result<u8, Error> {
    if options.explain {
        explain(comm, platform, options)
    } else if comm.rank() == 0 {
        reporter(comm, platform, options)
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
    options: &Options,
) -> Result<u8, Error> {
    let earlier = options
        .reports
        .earlier
        .as_deref()
        .map(Earlier::read)
        .transpose()
        .map_err(Error::usage)?;
    let json = options
        .reports
        .json
        .as_deref()
        .map(|path| {
            JsonReport::create(path).map_err(Error::system(format!("creating {}", path.display())))
        })
        .transpose()?;
    let mut reporter = Reporter {
        columns: options.columns,
        progress: None,
        rows: Vec::new(),
        json,
    };
    let result = reporter.measure(comm, platform, options);
    let totals = match result {
        Ok(totals) => totals,
        Err(error) => {
            // Saves what was measured. A failure to save must not hide the error itself.
            let _ = reporter.save(None, &[error.to_string()]);
            return Err(error);
        }
    };
    reporter.save(Some(&totals), &[])?;
    reporter.plot(options, platform)?;
    let mut closing = table::footer(&totals, &options.collective.program());
    if let Some(earlier) = earlier {
        closing.push_str(&earlier.table(&reporter.rows));
    }
    if options.reports.memory {
        closing.push_str(&memory_line(options, platform));
    }
    closing.push_str(&rails_line(hosts::rails(comm)?));
    reporter.say(&closing)?;
    comm.barrier().run()?;
    Ok(code(&totals))
}

struct Reporter {
    columns: Columns,
    progress: Option<Progress>,
    rows: Vec<Row>,
    json: Option<JsonReport>,
}

impl Reporter {
    fn measure(
        &mut self,
        comm: &Communicator,
        platform: &mut impl Platform,
        options: &Options,
    ) -> Result<Totals, Error> {
        let (options, lowered) = fit_to_memory(platform, options)?;
        self.say(&header(platform, &options, lowered.as_deref())?)?;
        if let Some(json) = &mut self.json {
            if !json.is_output() {
                print(&format!(
                    "# Writing JSON output to {}\n",
                    json.path().display()
                ))?;
            }
            json.configure(config(platform, &options), options.columns.cpu_time);
            json.save(&[], None, &[])
                .map_err(Error::system(format!("writing {}", json.path().display())))?;
        }
        self.say(&table::column_heads(self.columns))?;
        self.progress = Some(Progress::new(lines(&options, platform.ranks())));
        let findings = bench::run(comm, platform, &options, self);
        self.progress = None;
        Ok(totals(&findings?))
    }

    /// Prints text for people.
    fn say(&self, text: &str) -> Result<(), Error> {
        if self.json.as_ref().is_some_and(JsonReport::is_output) {
            return Ok(());
        }
        Ok(print(text)?)
    }

    fn save(&mut self, totals: Option<&Totals>, errors: &[String]) -> Result<(), Error> {
        let Some(json) = &mut self.json else {
            return Ok(());
        };
        json.save(&self.rows, totals, errors)
            .map_err(Error::system(format!("writing {}", json.path().display())))
    }

    fn plot(&self, options: &Options, platform: &impl Platform) -> Result<(), Error> {
        let Some(path) = &options.reports.plot else {
            return Ok(());
        };
        let title = format!(
            "{}, {} ranks, {}",
            options.collective.name(),
            platform.ranks(),
            platform.name()
        );
        Ok(write(path, &plot::chart(title, &self.rows))?)
    }
}

impl Sink for Reporter {
    fn row(&mut self, row: Row) -> Result<(), Error> {
        let text = table::row(&row, self.columns) + "\n";
        self.rows.push(row);
        match &self.progress {
            Some(progress) => progress.line(|| self.say(&text)),
            None => self.say(&text),
        }
    }
}

/// Refuses invalid file arguments before anything runs.
pub(crate) fn check_files(reports: &Reports) -> Result<(), Error> {
    if let Some(path) = &reports.plot {
        plot::check_name(path)?;
    }
    if let Some(path) = &reports.json
        && path.as_os_str() != "-"
        && !path
            .extension()
            .is_some_and(|ending| ending.eq_ignore_ascii_case("json"))
    {
        return Err(Error::usage(format!(
            "-J {}: the name must end in .json, or be -",
            path.display()
        )));
    }
    if let Some(path) = &reports.earlier {
        Earlier::read(path).map_err(Error::usage)?;
    }
    Ok(())
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
        limits::clamp(options.sweep, platform.limits(), need).map_err(Error::usage)?;
    options.sweep = sweep;
    Ok((options, line))
}

/// The number of rows of the whole table; 0 if it is endless.
fn lines(options: &Options, ranks: usize) -> u64 {
    let per_type = options.ops.len().max(1) * options.roots(ranks).len();
    let per_size = options.dtypes.len() * per_type * options.backends.len();
    let sweeps = options.cycles.saturating_mul(per_size as u64);
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
