//! Collectives: a sweep, and then some time under load.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use spark_ccl_console::document::Document;

use crate::doctor::Launcher;
use crate::finding::{Finding, Fix, Problem, Status};

/// Results go to standard output as JSON. Each size is called 20 times out of place and 20 times in
/// place, and once for each check.
const SWEEP: &str = "all_reduce --backend host -b 8 -e 64M -f 4 -n 20 -w 1 -c 1 -T 60 -J -";
/// A few seconds on a fast network.
const LOAD: &str = "all_reduce --backend host -b 16M -e 16M -n 50 -N 4 -c 1 -T 60 -J -";
/// A bandwidth has not lasted if it is below this part of the expected one.
pub(super) const LEAST: f64 = 0.85;
/// The fewest calls of the sweep and of the load, in both modes.
const CALLS: [f64; 2] = [40.0, 100.0];

/// The bandwidth at some time under load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Moment {
    /// Since the load began.
    pub(super) seconds: f64,
    /// In GB/s.
    pub(super) bus_bw: f64,
    pub(super) bytes: u64,
}

/// The bandwidth of a load, in GB/s.
#[derive(Debug)]
pub(super) struct Rates {
    pub(super) slowest: f64,
    pub(super) fastest: f64,
    pub(super) median: f64,
    /// The medians of the first and of the last quarter.
    pub(super) first: f64,
    pub(super) last: f64,
    /// The number of measurements that are a quarter.
    pub(super) quarter: usize,
}

impl Rates {
    /// `None` where there are no measurements.
    pub(super) fn of(moments: &[Moment]) -> Option<Self> {
        let all: Vec<_> = moments.iter().map(|one| one.bus_bw).collect();
        let slowest = all.iter().copied().reduce(f64::min)?;
        let quarter = all.len().div_ceil(4);
        Some(Self {
            slowest,
            fastest: all.iter().copied().fold(slowest, f64::max),
            median: median(&all),
            first: median(&all[..quarter]),
            last: median(&all[all.len() - quarter..]),
            quarter,
        })
    }

    /// The least that a moment may have.
    pub(super) fn limit(&self) -> f64 {
        LEAST * self.median
    }

    /// The least that the last quarter may have.
    pub(super) fn limit_at_last(&self) -> f64 {
        LEAST * self.first
    }

    /// Whether the end is far below the beginning.
    pub(super) fn falls(&self) -> bool {
        self.last < self.limit_at_last()
    }
}

/// Runs both with a rank on each host; returns what was measured, and the findings.
pub(super) fn run(
    launcher: &Launcher<'_>,
    limit: Duration,
) -> (Option<Document>, Vec<Moment>, Vec<Finding>) {
    let hosts: Vec<_> = (0..launcher.hosts.len()).collect();
    let names: Vec<_> = launcher
        .hosts
        .iter()
        .map(|host| host.name.as_str())
        .collect();
    let sweep: Result<Document, String> = launcher.ask(&hosts, SWEEP);
    let swept = judge("check.sweep", &names, &sweep);
    let is_right = swept.status == Status::Ok;
    let mut found = vec![swept];
    let mut moments = Vec::new();
    let start = Instant::now();
    while is_right && start.elapsed() < limit {
        let loaded: Result<Document, String> = launcher.ask(&hosts, LOAD);
        let finding = judge("check.load", &names, &loaded);
        let seconds = start.elapsed().as_secs_f64();
        for row in loaded.iter().flat_map(|it| &it.results) {
            moments.extend(row.out_of_place.as_ref().map(|timing| Moment {
                seconds,
                bus_bw: timing.bus_bw,
                bytes: row.size,
            }));
        }
        if finding.status == Status::Fail {
            found.push(finding);
            return (sweep.ok(), moments, found);
        }
    }
    found.extend(steady(&names, &moments));
    (sweep.ok(), moments, found)
}

pub(super) fn judge(
    id: &'static str,
    names: &[&str],
    outcome: &Result<Document, String>,
) -> Finding {
    let fail = |seen: String| {
        let fix = Fix::look("memory, cables and cooling of these hosts; then run the check again");
        let problem = Problem::new(seen, "right results", "no program can use these hosts", fix);
        Finding::fail(id, names, problem)
    };
    match outcome {
        Err(why) => fail(why.clone()),
        Ok(document) => match document.wrong() {
            0 if document.is_verified() => Finding::ok(id, names, "every result is right"),
            0 => fail("there are no results, or not all were verified".to_owned()),
            wrong => fail(format!("{wrong} elements wrong")),
        },
    }
}

/// Whether the bandwidth has lasted: no moment is far below the median, and the end not far below
/// the beginning.
pub(super) fn steady(names: &[&str], moments: &[Moment]) -> Option<Finding> {
    const ID: &str = "check.load";
    let rates = Rates::of(moments)?;
    let Rates {
        slowest,
        fastest,
        median,
        first,
        last,
        ..
    } = rates;
    let minutes = moments.last()?.seconds / 60.0;
    let seen = format!(
        "{minutes:.1} minutes of all_reduce: {slowest:.2} to {fastest:.2} GB/s (busbw), median \
         {median:.2}, at first {first:.2}, at last {last:.2}"
    );
    if slowest >= rates.limit() && !rates.falls() {
        return Some(Finding::ok(ID, names, seen));
    }
    let problem = Problem::new(
        seen,
        format!(
            "at any time {:.2} GB/s, {LEAST} of the median; at last {:.2}, {LEAST} of what it was \
             at first",
            rates.limit(),
            rates.limit_at_last()
        ),
        "these hosts do not keep up their bandwidth, or another program was in the way",
        Fix::look(
            "cooling, clocks and power limits (nvidia-smi -q -d PERFORMANCE), and pauses (ethtool \
             -S)",
        ),
    );
    Some(Finding::warn(ID, names, problem))
}

/// The median of at least one number.
pub(super) fn median(all: &[f64]) -> f64 {
    let mut all = all.to_vec();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// The least bytes that each rank must have sent: an all-reduce sends the bytes that the bus
/// bandwidth counts.
pub(super) fn moved(sweep: Option<&Document>, load: &[Moment]) -> f64 {
    let swept = sweep.into_iter().flat_map(|it| &it.results);
    let swept: f64 = swept.map(|row| row.size as f64 * CALLS[0]).sum();
    let loaded: f64 = load.iter().map(|one| one.bytes as f64 * CALLS[1]).sum();
    swept + loaded
}
