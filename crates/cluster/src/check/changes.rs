//! The changes since an older report: slower results, new faults, and other differences.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use spark_ccl_console::{document::Document, plain, rails::RailEnds};
use spark_ccl_topology::Host;

use super::load::{self, Moment};
use super::{FORMAT, Report};
use crate::doctor::Probed;
use crate::error::Error;
use crate::survey;

/// Bandwidth below this part of an earlier one is slower.
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
    load: Vec<Moment>,
    #[serde(deserialize_with = "hosts")]
    hosts: Vec<Host>,
}

/// The hosts of a report, which may come from another machine: validated as any other description.
fn hosts<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Host>, D::Error> {
    let all = Vec::<serde_json::Value>::deserialize(from)?;
    let read = all.iter().map(|one| Host::from_json(&one.to_string()));
    read.map(|host| host.map_err(D::Error::custom)).collect()
}

#[derive(Debug, Deserialize)]
struct Known {
    id: String,
    hosts: Vec<String>,
    status: String,
}

/// The changes since an earlier report.
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
        let named = |why: String| Error::usage(format!("--compare {}: {why}", path.display()));
        let text = survey::text(path).map_err(|error| named(error.to_string()))?;
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

    /// Refuses to compare with a report that is about other hosts. A host that is missing now is a
    /// change.
    pub(super) fn is_about(&self, hosts: &[Host]) -> Result<(), Error> {
        let is_known = |host: &&Host| self.hosts.iter().any(|one| one.name == host.name);
        let Some(other) = hosts.iter().find(|host| !is_known(host)) else {
            return Ok(());
        };
        let known: Vec<_> = self.hosts.iter().map(|host| host.name.as_str()).collect();
        Err(Error::usage(format!(
            "--compare: the older report is about {}, and not about {}; compare reports of the \
             same hosts, named alike",
            known.join(", "),
            other.name
        )))
    }
}

/// All changes since then, matched by names.
pub(super) fn since(older: &Older, report: &Report<'_>) -> Vec<Change> {
    let then = Measured::of(
        &older.hosts,
        older.probed.as_ref(),
        older.sweep.as_ref(),
        &older.load,
    );
    let (probed, sweep) = (report.probed.as_ref(), report.sweep.as_ref());
    let now = Measured::of(report.hosts, probed, sweep, &report.load);
    let mut found = findings(older, report);
    found.extend(then.0.iter().filter_map(|(name, value)| {
        let what = name.to_string();
        match (value, now.0.get(name)) {
            (Value::Bandwidth(then), Some(Value::Bandwidth(now))) => bandwidth(what, *then, *now),
            (Value::Latency(then), Some(Value::Latency(now))) => latency(what, *then, *now),
            _ => Some(missing(what, value.to_string(), true)),
        }
    }));
    for then in &older.hosts {
        match report.hosts.iter().find(|now| now.name == then.name) {
            Some(now) => found.extend(host(then, now)),
            None => found.push(missing(then.name.clone(), "there".to_owned(), true)),
        }
    }
    found.into_iter().map(Change::plain).collect()
}

impl Change {
    /// Each text in one line, without control characters: the older report may hold anything.
    fn plain(self) -> Self {
        let [what, then, now] = [self.what, self.then, self.now].map(|text| plain(&text));
        Self {
            what,
            then,
            now,
            ..self
        }
    }
}

/// New findings, and findings whose status has changed. Of several with one name on the same hosts,
/// the worst counts.
fn findings(older: &Older, report: &Report<'_>) -> Vec<Change> {
    let then = older.findings.iter();
    let then = worst(then.map(|one| (named(&one.hosts, &one.id), &*one.status)));
    let statuses: Vec<_> = report
        .findings
        .iter()
        .map(|one| {
            (
                named(&one.hosts, one.id),
                one.status.to_string().to_lowercase(),
            )
        })
        .collect();
    let now = worst(
        statuses
            .iter()
            .map(|(what, status)| (what.clone(), &**status)),
    );
    let bad = severity("warn");
    let mut found = Vec::new();
    for (what, now) in &now {
        let was = then.get(what);
        let (from, to) = (was.map_or(0, |was| severity(was)), severity(now));
        if from == to || (was.is_none() && to < bad) {
            continue;
        }
        found.push(Change {
            what: what.clone(),
            then: was.map_or("no finding", |was| *was).to_owned(),
            now: (*now).to_owned(),
            is_worse: to > from && to >= bad,
        });
    }
    for (what, was) in then {
        if severity(was) >= bad && !now.contains_key(&what) {
            found.push(missing(what, was.to_owned(), false));
        }
    }
    found
}

fn named(hosts: &[String], id: &str) -> String {
    format!("{} {id}", hosts.join(" - "))
}

fn worst<'a>(all: impl Iterator<Item = (String, &'a str)>) -> BTreeMap<String, &'a str> {
    let mut found = BTreeMap::new();
    for (what, status) in all {
        let known = found.entry(what).or_insert(status);
        if severity(status) > severity(known) {
            *known = status;
        }
    }
    found
}

/// A status's place, the worst last.
fn severity(status: &str) -> usize {
    let order = ["ok", "unknown", "warn", "fail"];
    order.iter().position(|one| *one == status).unwrap_or(1)
}

/// The measurements of a report, by names that do not depend on an order.
#[derive(Default)]
struct Measured(BTreeMap<Name, Value>);

/// The kinds of measurements, in the order in which changes are listed.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    what: &'static str,
    /// Empty for measurements of all hosts together.
    rails: String,
    bytes: Option<u64>,
}

enum Value {
    /// In GB/s.
    Bandwidth(f64),
    /// In microseconds.
    Latency(f64),
}

impl Measured {
    fn of(
        hosts: &[Host],
        probed: Option<&Probed>,
        sweep: Option<&Document>,
        load: &[Moment],
    ) -> Self {
        let mut all = Self::default();
        for pair in probed.iter().flat_map(|it| &it.pairs) {
            let names = pair
                .hosts
                .map(|index| hosts.get(index).map_or("?", |host| &*host.name));
            for (kind, measured) in [("TCP", Some(&pair.tcp)), ("RDMA", pair.rdma.as_ref())] {
                let Some(Ok(measured)) = measured else {
                    continue;
                };
                for row in &measured.rows {
                    let rails = rails(names, &measured.rails, &row.rails);
                    let name = Name {
                        rails,
                        what: kind,
                        bytes: Some(row.bytes),
                    };
                    all.0.insert(name, Value::Bandwidth(row.gb_per_s));
                }
            }
            if let Some(Ok(measured)) = &pair.latency {
                for row in &measured.rows {
                    let rails = rails(names, &measured.rails, &[row.rail]);
                    let name = Name {
                        rails,
                        what: "RDMA latency",
                        bytes: Some(row.bytes),
                    };
                    all.0.insert(name, Value::Latency(row.median_us));
                }
            }
        }
        for row in sweep.iter().flat_map(|it| &it.results) {
            let Some(timing) = &row.out_of_place else {
                continue;
            };
            let value = match timing.time {
                Some(time) if row.size <= SMALL => Value::Latency(time),
                _ => Value::Bandwidth(timing.bus_bw),
            };
            all.0
                .insert(Name::of_all("all_reduce", Some(row.size)), value);
        }
        let rates: Vec<_> = load.iter().map(|one| one.bus_bw).collect();
        if !rates.is_empty() {
            let median = Value::Bandwidth(load::median(&rates));
            all.0
                .insert(Name::of_all("all_reduce under load", None), median);
        }
        all
    }
}

impl Name {
    /// The name of a measurement of all hosts together.
    fn of_all(what: &'static str, bytes: Option<u64>) -> Self {
        let rails = String::new();
        Self { what, rails, bytes }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)?;
        if let Some(bytes) = self.bytes {
            write!(f, " of {bytes} B")?;
        }
        if !self.rails.is_empty() {
            write!(f, ": {}", self.rails)?;
        }
        Ok(())
    }
}

/// Rails by their ends and hosts, whatever the order in which hosts were asked.
fn rails(hosts: [&str; 2], all: &[RailEnds], indices: &[usize]) -> String {
    let rails = indices.iter().filter_map(|index| all.get(*index));
    let name = |rail: &RailEnds| {
        let mut ends = [0, 1].map(|side| format!("{} {}", hosts[side], rail.ends[side]));
        ends.sort();
        ends.join(" to ")
    };
    let mut names: Vec<_> = rails.map(name).collect();
    names.sort();
    names.join(" and ")
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bandwidth(value) => write!(f, "{value:.2} GB/s"),
            Self::Latency(value) => write!(f, "{value:.1} us"),
        }
    }
}

/// Lists the things that are gone.
fn missing(what: String, then: String, is_worse: bool) -> Change {
    Change {
        what,
        then,
        now: "missing".to_owned(),
        is_worse,
    }
}

fn bandwidth(what: String, then: f64, now: f64) -> Option<Change> {
    let is_worse = now < LESS * then;
    (is_worse || then < LESS * now).then(|| Change {
        what,
        then: Value::Bandwidth(then).to_string(),
        now: Value::Bandwidth(now).to_string(),
        is_worse,
    })
}

fn latency(what: String, then: f64, now: f64) -> Option<Change> {
    let longer = |a: f64, b: f64| b > LONGER.0 * a && b > a + LONGER.1;
    let is_worse = longer(then, now);
    (is_worse || longer(now, then)).then(|| Change {
        what,
        then: Value::Latency(then).to_string(),
        now: Value::Latency(now).to_string(),
        is_worse,
    })
}

/// Lists the software and settings that differ.
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
