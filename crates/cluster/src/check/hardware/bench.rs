//! The parts that all checks share: hosts, findings of doctor, and programs that run on hosts.

use std::time::{Duration, Instant};

use spark_ccl_console::document::Document;
use spark_ccl_topology::cluster::HostRail;
use spark_ccl_topology::{Cluster, Host};

use super::Check;
use crate::doctor::{Launcher, Probed};
use crate::finding::{Finding, Status};
use crate::remote::Answer;
use crate::survey::{self, SurveyArgs};

/// The reason why nothing that needs RDMA runs.
pub(super) const NO_RDMA: &str = "no rail of RDMA joins these hosts";
/// The time limit of a script.
const LIMIT: Duration = Duration::from_secs(120);

pub(super) struct Bench<'a> {
    pub(super) survey: &'a SurveyArgs,
    pub(super) launcher: Launcher<'a>,
    pub(super) cluster: Cluster<'a>,
    pub(super) found: &'a [Finding],
    pub(super) probed: Option<&'a Probed>,
    /// The time for which each of the long checks runs.
    pub(super) limit: Duration,
}

impl Bench<'_> {
    /// The command line that runs a program with a rank on each host.
    pub(super) fn line(&self, program: &str) -> String {
        format!(
            "spark-perf launch -H {} -- spark-perf {program}",
            self.names()
        )
    }

    /// All hosts, as `-H` takes them.
    pub(super) fn names(&self) -> String {
        let reached: Vec<_> = (0..self.launcher.hosts.len()).collect();
        self.launcher.list(&reached)
    }

    /// The indices of all hosts.
    pub(super) fn all(&self) -> Vec<usize> {
        (0..self.cluster.hosts.len()).collect()
    }

    /// The reason why no ranks run on these hosts, if so.
    pub(super) fn obstacle(&self) -> Option<String> {
        match self.probed.map(|probed| &probed.collective) {
            Some(Ok(_)) => None,
            Some(Err(why)) => Some(format!("ranks on these hosts fail: {why}")),
            None => Some("not all hosts answer: see spark-perf doctor".to_owned()),
        }
    }

    pub(super) fn rdma_rails(&self) -> impl Iterator<Item = &HostRail> {
        self.cluster.rails.iter().filter(|rail| rail.rdma)
    }

    /// Describes the hosts once more; nothing where one does not answer.
    pub(super) fn read_again(&self) -> Vec<Host> {
        let read = survey::asked(self.survey, self.launcher.hosts).unwrap_or_default();
        let read: Result<Vec<_>, _> = read.into_iter().map(|one| one.map(|it| it.host)).collect();
        read.unwrap_or_default()
    }

    /// The findings of doctor under these names, as one check.
    pub(super) fn found(&self, check: Check, ids: &[&str]) -> Check {
        let check = check.by(format!("spark-perf doctor --probe -H {}", self.names()));
        let found: Vec<_> = self
            .found
            .iter()
            .filter(|one| ids.contains(&one.id))
            .collect();
        let Some(status) = found.iter().map(|one| one.status).max() else {
            return check.could_not(format!("these hosts have nothing that {} is about", ids[0]));
        };
        let told: Vec<_> = found
            .iter()
            .filter(|one| one.status == status)
            .map(|one| format!("{}: {}", one.hosts.join(" - "), one.seen))
            .collect();
        check.is(status, told.join("; "))
    }

    /// Runs measurements of collectives one after another: every result must be right.
    pub(super) fn verified(&self, check: Check, programs: &[String]) -> Check {
        let mut last = None;
        for program in programs {
            let check = check.clone().by(self.line(program));
            let asked: Result<Document, String> =
                self.launcher.ask(&self.all(), &format!("{program} -J -"));
            match asked {
                Err(why) => return check.is(Status::Fail, why),
                Ok(document) if document.wrong() > 0 => {
                    return check.is(
                        Status::Fail,
                        format!("{program}: {} elements wrong", document.wrong()),
                    );
                }
                Ok(document) if !document.is_verified() => {
                    return check.is(
                        Status::Fail,
                        format!("{program}: not all results were verified"),
                    );
                }
                Ok(document) => last = Some(document),
            }
        }
        let seen = last.as_ref().map_or_else(String::new, figures);
        check.is(
            Status::Ok,
            format!("{} runs, every result right{seen}", programs.len()),
        )
    }

    /// Runs a shell script on each host, with the variables of its rank; `$PERF` in it is
    /// spark-perf.
    pub(super) fn script(
        &self,
        script: &str,
        options: &[&str],
    ) -> Result<(Answer, Duration), String> {
        let start = Instant::now();
        // The agent on each host is spark-perf, and the parent of the shell.
        let script = format!("PERF=/proc/$PPID/exe; {script}");
        let command = ["sh", "-c", &script];
        let answer = self.launcher.run(&self.all(), options, &command, LIMIT)?;
        Ok((answer, start.elapsed()))
    }
}

/// The time of the smallest size, and the bandwidth of the largest.
pub(super) fn figures(document: &Document) -> String {
    let timed: Vec<_> = document
        .results
        .iter()
        .filter_map(|row| Some((row.size, row.out_of_place.as_ref()?)))
        .collect();
    match timed[..] {
        [(first, fast), .., (last, wide)] => format!(
            "; {first} B in {:.1} us, {last} B at {:.2} GB/s (busbw)",
            fast.time.unwrap_or(0.0),
            wide.bus_bw
        ),
        _ => String::new(),
    }
}
