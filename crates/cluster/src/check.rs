//! `spark-perf check`: a new cluster's check-up in one command, and its report.
//!
//! Runs the other commands, and puts together what they find. Judges only which data crossed which
//! interface, and the changes since an older report.

mod changes;
mod chart;
mod hardware;
mod html;
mod load;
mod markdown;
#[cfg(test)]
mod tests;
mod traffic;

use std::path::{Path, PathBuf};
use std::time::Duration;

use changes::{Change, Older};
use clap::Parser;
pub use hardware::COLLECTIVES;
use load::Moment;
use serde::Serialize;
use spark_ccl_console::{document::Document, draft, exit, json, print};
use spark_ccl_status::clock;
use spark_ccl_topology::{Cluster, Host};
use traffic::Traffic;

use crate::doctor::{self, Examination, Launcher, Probed};
use crate::error::Error;
use crate::finding::{Finding, Fix, Problem, Status};
use crate::remote::{self, HostArgs};
use crate::survey::{self, SurveyArgs};

/// The version of the JSON form.
const FORMAT: u32 = 1;

const AFTER_HELP: &str = "\
What it does, in this order:
  1. what doctor --probe does: both hosts, what joins them, firewalls, each rail
     alone and together
  2. a sweep of all_reduce from 8 B to 64 MiB in host memory; every result is
     verified
  3. all_reduce of 16 MiB for --minutes
  4. reads the byte counters of all interfaces and RDMA ports before 2 and after
     3: the bytes must have crossed the rails, a part over each and in each
     direction, and few of them other interfaces
  It prints the findings that are not ok, and a summary. --report writes
  check.json, check.md and check.html, which needs no other file; --compare says
  what became slower or otherwise since the check.json of an earlier check.
  Slower is: bandwidth below 0.85 of what it was, latency of small sizes above
  1.3 times and 2 us more. What the older report has measured and this one has
  not (a rail, a size, a host) is missing, and counts as worse; so does a
  finding that is new, or more severe.
  A host that does not answer any more before or after 2 and 3 is the finding
  check.lost, which fails; the report is written.

Exit codes:
  0 nothing fails, and nothing is worse than in the older report
  1 something fails: a finding says what, also where a host cannot be read or
    was lost
  2 a call of the operating system failed, such as writing the report
  6 bad arguments, an older report that cannot be read, or one that is not about
    these hosts
  7 nothing fails, but something is slower, missing or worse otherwise than in
    the older report

Examples:
  spark-perf check -H a,b --report first
  spark-perf check -H a,b --minutes 30 --report now --compare first/check.json
  spark-perf check --hardware -H a,b --minutes 5 --json > hardware.json";

/// Checks a cluster: doctor, rails, collectives under load, and what crossed which interface.
#[derive(Debug, Clone, Parser)]
#[command(name = "spark-perf check", after_long_help = AFTER_HELP, after_help = "More with --help.")]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    hosts: HostArgs,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Write the report into this folder, as JSON, Markdown and HTML
    #[arg(long, value_name = "FOLDER")]
    report: Option<PathBuf>,
    /// The check.json of an earlier check
    #[arg(long, value_name = "OLDER.json")]
    compare: Option<PathBuf>,
    /// How long collectives run under load
    #[arg(long, value_name = "MINUTES", default_value_t = 1.0, value_parser = minutes)]
    minutes: f64,
    /// Instead of all that: each check that only hardware can show, in order, with what is
    /// expected. --minutes is the most that each of the long ones takes
    #[arg(long, conflicts_with_all = ["report", "compare"])]
    hardware: bool,
}

/// The findings.
#[derive(Debug, Serialize)]
struct Report<'a> {
    format: u32,
    spark_ccl: &'static str,
    /// UTC.
    time: String,
    findings: Vec<Finding>,
    probed: Option<Probed>,
    /// `None` where no collective ran.
    sweep: Option<Document>,
    load: Vec<Moment>,
    traffic: Vec<Traffic>,
    changes: Vec<Change>,
    hosts: &'a [Host],
}

/// Checks; returns the exit code.
pub(crate) fn run(args: &CheckArgs) -> Result<u8, Error> {
    if args.hosts.hosts()?.len() < 2 {
        let why = "check measures between hosts: name at least two with -H";
        return Err(Error::usage(why.to_owned()));
    }
    if args.hardware {
        return hardware::run(args);
    }
    let older = args.compare.as_deref().map(Older::read).transpose()?;
    if let Some(folder) = &args.report {
        let creating = Error::system(format!("creating {}", folder.display()));
        std::fs::create_dir_all(folder).map_err(creating)?;
    }
    let survey = SurveyArgs::of(args.hosts.clone());
    let examination = doctor::examine(&survey, true, &doctor::environment())?;
    if let Some(older) = &older {
        older.is_about(&examination.hosts)?;
    }
    let mut report = report(&survey, args, &examination)?;
    if let Some(older) = &older {
        report.changes = changes::since(older, &report);
    }
    if let Some(folder) = &args.report {
        write(folder, &report)?;
    }
    if args.json {
        print(&json(&report)?)?;
    } else {
        print(&markdown::summary(&report))?;
    }
    Ok(code(&report))
}

/// Measures, and puts everything together.
fn report<'a>(
    survey_args: &SurveyArgs,
    args: &CheckArgs,
    examination: &'a Examination,
) -> Result<Report<'a>, Error> {
    let mut report = Report {
        format: FORMAT,
        spark_ccl: env!("CARGO_PKG_VERSION"),
        time: clock::now(),
        findings: examination.found.clone(),
        probed: examination.probed.clone(),
        sweep: None,
        load: Vec::new(),
        traffic: Vec::new(),
        changes: Vec::new(),
        hosts: &examination.hosts,
    };
    let runs = examination
        .probed
        .as_ref()
        .is_some_and(|probed| probed.collective.is_ok());
    if !runs {
        return Ok(report);
    }
    let launcher = Launcher {
        ssh: args.hosts.ssh.words(),
        hosts: &examination.all_reached(),
    };
    let before = read_again(survey_args, launcher.hosts, &mut report.findings)?;
    let minutes = Duration::from_secs_f64(60.0 * args.minutes);
    let (sweep, loaded, found) = load::run(&launcher, minutes);
    report.findings.extend(found);
    let after = read_again(survey_args, launcher.hosts, &mut report.findings)?;
    let moved = load::moved(sweep.as_ref(), &loaded);
    let cluster = Cluster::of(&examination.hosts);
    for (index, readings) in before.iter().zip(&after).enumerate() {
        // A host that was not read has a finding already, and no counters.
        let counted = match readings {
            (Some(then), Some(now)) => traffic::between(&cluster, index, then, now),
            _ => Vec::new(),
        };
        let judged = traffic::judge(&cluster, index, &counted, moved);
        report.findings.push(judged);
        report.traffic.extend(counted);
    }
    report.sweep = sweep;
    report.load = loaded;
    Ok(report)
}

/// Reads the hosts that were examined once more. One that does not answer any more is a finding:
/// the report is not lost.
fn read_again(
    args: &SurveyArgs,
    hosts: &[remote::Host],
    found: &mut Vec<Finding>,
) -> Result<Vec<Option<Host>>, Error> {
    let mut readings = Vec::new();
    for answer in survey::asked(args, hosts)? {
        match answer {
            Ok(one) => readings.push(Some(one.host)),
            Err(lost) => {
                let problem = Problem::new(
                    lost.error.to_string(),
                    "an answer before and after the collectives",
                    "this host had answered, and does not any more: what it has carried is not \
                     known",
                    Fix::look(
                        "whether it runs: its console, power and cooling; then run the check again",
                    ),
                );
                found.push(Finding::fail("check.lost", &[&lost.name], problem));
                readings.push(None);
            }
        }
    }
    Ok(readings)
}

fn write(folder: &Path, report: &Report<'_>) -> Result<(), Error> {
    let files = [
        ("check.json", json(report)?),
        ("check.md", markdown::text(report)),
        ("check.html", html::page(report)?),
    ];
    for (name, text) in files {
        let path = folder.join(name);
        let writing = Error::system(format!("writing {}", path.display()));
        draft::replace(&path, text.as_bytes()).map_err(writing)?;
    }
    Ok(())
}

fn code(report: &Report<'_>) -> u8 {
    let fails = |one: &Finding| one.status == Status::Fail;
    if report.findings.iter().any(fails) {
        exit::UNSOUND
    } else if report.changes.iter().any(|one| one.is_worse) {
        exit::WRONG
    } else {
        0
    }
}

fn minutes(text: &str) -> Result<f64, String> {
    let minutes = text.parse().ok();
    minutes
        .filter(|minutes| (0.0..=1440.0).contains(minutes))
        .ok_or_else(|| "expected minutes, from 0 to 1440".to_owned())
}
