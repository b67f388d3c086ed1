//! `spark-perf check --hardware`: the checks that only hardware can do, each with the expected
//! result.
//!
//! Checks that this machine cannot do, or that no program does, are listed, too, with the reason:
//! none passes by being left out.

mod bench;
mod facts;
mod failures;
mod rails;
mod results;
mod timing;

use std::fmt;
use std::time::Duration;

use bench::Bench;
pub use results::COLLECTIVES;
use serde::Serialize;
use spark_ccl_console::{exit, plain, print};
use spark_ccl_status::clock;
use spark_ccl_topology::Cluster;

use super::CheckArgs;
use crate::doctor::{self, Launcher};
use crate::error::Error;
use crate::finding::Status;
use crate::survey::SurveyArgs;

/// The version of the JSON form.
const FORMAT: u32 = 1;

/// A check, and how it ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Check {
    what: &'static str,
    expected: String,
    status: Status,
    seen: String,
    /// The command that runs it again, or by hand.
    command: Option<String>,
}

/// The results of all checks.
#[derive(Debug, Serialize)]
struct Report {
    format: u32,
    spark_ccl: &'static str,
    /// UTC.
    time: String,
    hosts: Vec<String>,
    checks: Vec<Numbered>,
}

/// A check with its number: that of the part, and its place in it.
#[derive(Debug, Serialize)]
struct Numbered {
    number: String,
    #[serde(flatten)]
    check: Check,
}

/// Checks; returns the exit code.
pub(super) fn run(args: &CheckArgs) -> Result<u8, Error> {
    let survey = SurveyArgs::of(args.hosts.clone());
    let examination = doctor::examine(&survey, true, &doctor::environment())?;
    let reached = examination.all_reached();
    let bench = Bench {
        survey: &survey,
        launcher: Launcher {
            ssh: args.hosts.ssh.words(),
            hosts: &reached,
        },
        cluster: Cluster::of(&examination.hosts),
        found: &examination.found,
        probed: examination.probed.as_ref(),
        limit: Duration::from_secs_f64(60.0 * args.minutes),
    };
    let parts = [
        facts::checks,
        rails::order,
        results::checks,
        failures::checks,
        timing::checks,
        timing::serving,
    ];
    let checks = (1..).zip(parts).flat_map(|(part, checks)| {
        let numbered = move |(place, check)| Numbered {
            number: format!("{part}.{place}"),
            check,
        };
        (1..).zip(checks(&bench)).map(numbered)
    });
    let report = Report {
        format: FORMAT,
        spark_ccl: env!("CARGO_PKG_VERSION"),
        time: clock::now(),
        hosts: examination
            .hosts
            .iter()
            .map(|host| plain(&host.name))
            .collect(),
        checks: checks.collect(),
    };
    print(&if args.json {
        format!("{:#}\n", serde_json::json!(report))
    } else {
        report.to_string()
    })?;
    Ok(if report.count(Status::Fail) > 0 {
        exit::UNSOUND
    } else {
        0
    })
}

impl Check {
    /// A check that has not run.
    fn new(what: &'static str, expected: impl Into<String>) -> Self {
        Self {
            what,
            expected: expected.into(),
            status: Status::Unknown,
            seen: String::new(),
            command: None,
        }
    }

    /// With the command that runs it.
    fn by(self, command: impl Into<String>) -> Self {
        Self {
            command: Some(command.into()),
            ..self
        }
    }

    /// The result, in words. It may hold words of other hosts.
    fn is(self, status: Status, seen: impl AsRef<str>) -> Self {
        Self {
            status,
            seen: plain(seen.as_ref()),
            ..self
        }
    }

    /// The reason why it could not run.
    fn could_not(self, why: impl AsRef<str>) -> Self {
        self.is(Status::Unknown, format!("not run: {}", why.as_ref()))
    }
}

impl Report {
    fn count(&self, status: Status) -> usize {
        self.checks
            .iter()
            .filter(|one| one.check.status == status)
            .count()
    }
}

impl fmt::Display for Report {
    /// A line for each check, and a summary.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Numbered { number, check } in &self.checks {
            let Check {
                what,
                expected,
                status,
                seen,
                command,
            } = check;
            write!(
                f,
                "{status:<7}  {number:<4}  {what}: {seen}; expected: {expected}"
            )?;
            match command {
                Some(command) => writeln!(f, "; run: {command}")?,
                None => writeln!(f)?,
            }
        }
        let [fail, warn, unknown, ok] = [Status::Fail, Status::Warn, Status::Unknown, Status::Ok]
            .map(|status| self.count(status));
        writeln!(
            f,
            "# {fail} fail, {warn} to look at, {unknown} not shown here, {ok} ok"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_a_line_and_what_was_not_run_is_not_ok() {
        let check = Check::new("watts", "what the wall shows")
            .by("a meter")
            .could_not("no\u{1b} meter");
        let numbered = Numbered {
            number: "5.7".to_owned(),
            check,
        };
        let report = Report {
            format: FORMAT,
            spark_ccl: "0",
            time: String::new(),
            hosts: Vec::new(),
            checks: vec![numbered],
        };
        assert_eq!(
            report.to_string(),
            "unknown  5.7   watts: not run: no meter; expected: what the wall shows; run: a meter\n\
             # 0 fail, 0 to look at, 1 not shown here, 0 ok\n"
        );
        assert_eq!(serde_json::json!(report)["checks"][0]["number"], "5.7");
    }
}
