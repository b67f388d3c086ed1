//! What became slower, or otherwise, since an older report.

use std::path::Path;

use serde::{Deserialize, Serialize};
use spark_ccl_topology::Host;

use super::{FORMAT, Report};
use crate::doctor::Probed;
use crate::error::Error;
use crate::report::compare::Document;

/// Bandwidth below this part of what it was is slower.
const LESS: f64 = 0.85;
/// Latency above this many times what it was, and this many microseconds more, is slower.
const LONGER: (f64, f64) = (1.3, 2.0);
/// Sizes up to this are compared by time, larger ones by bandwidth.
const SMALL: u64 = 64 << 10;

/// An older report, as far as it is compared.
#[derive(Debug, Deserialize)]
pub(super) struct Older {
    format: u32,
    findings: Vec<Known>,
    probed: Option<Probed>,
    sweep: Option<Document>,
    hosts: Vec<Host>,
}

#[derive(Debug, Deserialize)]
struct Known {
    id: String,
    hosts: Vec<String>,
    status: String,
}

/// What is not as it was.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Change {
    pub(super) what: String,
    pub(super) then: String,
    pub(super) now: String,
    /// Whether it is slower, or a new fault.
    pub(super) is_worse: bool,
}

impl Older {
    pub(super) fn read(path: &Path) -> Result<Self, Error> {
        let named = |why: String| Error::Usage(format!("--compare {}: {why}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| named(error.to_string()))?;
        let read: Result<Self, _> = serde_json::from_str(&text);
        let older =
            read.map_err(|error| named(format!("no report of spark-perf check: {error}")))?;
        if older.format != FORMAT {
            return Err(named(format!(
                "format {}, and this program reads {FORMAT}",
                older.format
            )));
        }
        Ok(older)
    }
}

/// All changes since then.
pub(super) fn since(older: &Older, report: &Report<'_>) -> Vec<Change> {
    let mut found = findings(older, report);
    if let (Some(then), Some(now)) = (&older.probed, &report.probed) {
        found.extend(rails(then, now));
    }
    if let (Some(then), Some(now)) = (&older.sweep, &report.sweep) {
        found.extend(sweep(then, now));
    }
    for (then, now) in older.hosts.iter().zip(report.hosts) {
        found.extend(host(then, now));
    }
    found
}

/// Findings that are new, or gone.
fn findings(older: &Older, report: &Report<'_>) -> Vec<Change> {
    let bad = ["warn", "fail"];
    let now: Vec<(String, String)> = report
        .findings
        .iter()
        .map(|one| {
            (
                format!("{} {}", one.hosts.join(" - "), one.id),
                one.status.to_string().to_lowercase(),
            )
        })
        .filter(|one| bad.contains(&&*one.1))
        .collect();
    let then: Vec<(String, String)> = older
        .findings
        .iter()
        .map(|one| {
            (
                format!("{} {}", one.hosts.join(" - "), one.id),
                one.status.clone(),
            )
        })
        .filter(|one| bad.contains(&&*one.1))
        .collect();
    let change = |what: &str, then: &str, now: &str, is_worse| Change {
        what: what.to_owned(),
        then: then.to_owned(),
        now: now.to_owned(),
        is_worse,
    };
    let new = now.iter().filter(|one| !then.contains(one));
    let gone = then
        .iter()
        .filter(|one| !now.iter().any(|it| it.0 == one.0));
    new.map(|one| change(&one.0, "not so", &one.1, true))
        .chain(gone.map(|one| change(&one.0, &one.1, "ok", false)))
        .collect()
}

fn rails(then: &Probed, now: &Probed) -> Vec<Change> {
    let mut found = Vec::new();
    for (then, now) in then.pairs.iter().zip(&now.pairs) {
        let tcp = (then.tcp.as_ref().ok(), now.tcp.as_ref().ok());
        let rdma = [then, now].map(|one| one.rdma.as_ref().and_then(|it| it.as_ref().ok()));
        for (kind, then, now) in [("TCP", tcp.0, tcp.1), ("RDMA", rdma[0], rdma[1])] {
            let (Some(then), Some(now)) = (then, now) else {
                continue;
            };
            for (then, row) in then.rows.iter().zip(&now.rows) {
                let names: Vec<_> = row
                    .rails
                    .iter()
                    .map(|rail| now.rails[*rail].name())
                    .collect();
                let what = format!("{kind}: {}", names.join(" and "));
                found.extend(bandwidth(what, then.gb_per_s, row.gb_per_s));
            }
        }
    }
    found
}

fn sweep(then: &Document, now: &Document) -> Vec<Change> {
    let mut found = Vec::new();
    for row in &now.results {
        let Some(old) = then.results.iter().find(|old| old.size == row.size) else {
            continue;
        };
        let (Some(then), Some(now)) = (&old.out_of_place, &row.out_of_place) else {
            continue;
        };
        let what = format!("all_reduce of {} B", row.size);
        match (then.time, now.time) {
            (Some(then), Some(now)) if row.size <= SMALL => found.extend(latency(what, then, now)),
            _ => found.extend(bandwidth(what, then.bus_bw, now.bus_bw)),
        }
    }
    found
}

fn bandwidth(what: String, then: f64, now: f64) -> Option<Change> {
    let is_worse = now < LESS * then;
    (is_worse || then < LESS * now).then(|| Change {
        what,
        then: format!("{then:.2} GB/s"),
        now: format!("{now:.2} GB/s"),
        is_worse,
    })
}

fn latency(what: String, then: f64, now: f64) -> Option<Change> {
    let longer = |a: f64, b: f64| b > LONGER.0 * a && b > a + LONGER.1;
    let is_worse = longer(then, now);
    (is_worse || longer(now, then)).then(|| Change {
        what,
        then: format!("{then:.1} us"),
        now: format!("{now:.1} us"),
        is_worse,
    })
}

/// What is installed otherwise, or set otherwise.
fn host(then: &Host, now: &Host) -> Vec<Change> {
    let facts = |host: &Host| {
        let mut facts = vec![
            ("kernel".to_owned(), host.system.kernel.clone()),
            ("driver".to_owned(), format!("{:?}", host.software.driver)),
        ];
        for netdev in host.network.netdevs.iter().filter(|one| !one.loopback) {
            facts.push((format!("MTU of {}", netdev.name), netdev.mtu.to_string()));
        }
        facts
    };
    let old = facts(then);
    let changed = facts(now).into_iter().filter_map(|(what, value)| {
        let (_, was) = old.iter().find(|one| one.0 == what)?;
        (*was != value).then(|| Change {
            what: format!("{}: {what}", now.name),
            then: was.clone(),
            now: value,
            is_worse: false,
        })
    });
    changed.collect()
}
