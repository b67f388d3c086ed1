//! The report as Markdown, and its summary for a terminal.

use std::fmt::Write as _;

use spark_ccl_console::notation::size::human;

use super::Report;
use super::traffic::bytes;
use crate::finding::{Finding, Status};

/// The findings that are not in order, the changes, and the result.
pub(super) fn summary(report: &Report<'_>) -> String {
    let mut text = String::new();
    let told = |one: &&Finding| {
        one.status > Status::Unknown || one.id.starts_with("probe.") || one.id.starts_with("check.")
    };
    for one in report.findings.iter().filter(told) {
        let _ = writeln!(text, "{one}");
    }
    for one in &report.changes {
        let word = if one.is_worse { "WORSE" } else { "change" };
        let _ = writeln!(text, "{word:<7}  {}: {} -> {}", one.what, one.then, one.now);
    }
    let _ = writeln!(text, "# {}", verdict(report));
    text
}

/// The result in one line.
pub(super) fn verdict(report: &Report<'_>) -> String {
    let count = |status| {
        let found = report.findings.iter();
        found.filter(|one| one.status == status).count()
    };
    let [fail, warn, ok] = [Status::Fail, Status::Warn, Status::Ok].map(count);
    let worse = report.changes.iter().filter(|one| one.is_worse).count();
    let worse = match worse {
        0 => String::new(),
        worse => format!("; {worse} worse than in the older report"),
    };
    format!("{fail} fail, {warn} warn, {ok} ok{worse}")
}

/// The whole report.
pub(super) fn text(report: &Report<'_>) -> String {
    let names: Vec<_> = report.hosts.iter().map(|host| host.name.as_str()).collect();
    let mut text = format!(
        "# Check of {}\n\n{} UTC, spark-perf {}. {}.\n",
        names.join(", "),
        report.time,
        report.spark_ccl,
        verdict(report)
    );
    table(
        &mut text,
        "Changes since the older report",
        &["what", "then", "now", ""],
        report.changes.iter().map(|one| {
            let word = if one.is_worse { "worse" } else { "" };
            vec![
                one.what.clone(),
                one.then.clone(),
                one.now.clone(),
                word.to_owned(),
            ]
        }),
    );
    table(
        &mut text,
        "Findings",
        &FINDINGS,
        report.findings.iter().map(cells),
    );
    table(&mut text, "all_reduce", &ROWS, rows(report));
    table(
        &mut text,
        "Bytes by interface",
        &["host", "interface", "rail", "sent", "received"],
        traffic(report),
    );
    text
}

/// The heads of the findings' columns.
pub(super) const FINDINGS: [&str; 6] = [
    "status",
    "hosts",
    "finding",
    "seen",
    "wanted",
    "why, and what to do",
];

/// A finding as cells.
fn cells(one: &Finding) -> Vec<String> {
    let todo = [one.why.clone(), one.fix.as_ref().map(ToString::to_string)];
    let todo: Vec<_> = todo.into_iter().flatten().collect();
    vec![
        one.status.to_string(),
        one.hosts.join(" - "),
        one.id.to_owned(),
        one.seen.clone(),
        one.wanted.clone().unwrap_or_default(),
        todo.join("; "),
    ]
}

/// The heads of the sweep's columns.
pub(super) const ROWS: [&str; 3] = ["size", "time (µs)", "bus bandwidth (GB/s)"];

/// The sweep as cells.
pub(super) fn rows(report: &Report<'_>) -> impl Iterator<Item = Vec<String>> {
    let rows = report.sweep.iter().flat_map(|it| &it.results);
    rows.filter_map(|row| {
        let timing = row.out_of_place.as_ref()?;
        Some(vec![
            human(row.size),
            format!("{:.1}", timing.time.unwrap_or(0.0)),
            format!("{:.3}", timing.bus_bw),
        ])
    })
}

/// The counters as cells.
pub(super) fn traffic(report: &Report<'_>) -> impl Iterator<Item = Vec<String>> {
    report.traffic.iter().map(|one| {
        let rail = if one.rail { "yes" } else { "" };
        vec![
            one.host.clone(),
            one.name.clone(),
            rail.to_owned(),
            bytes(one.sent as f64),
            bytes(one.received as f64),
        ]
    })
}

/// A table with its title, if it has rows.
fn table(text: &mut String, title: &str, heads: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() {
        return;
    }
    let _ = write!(
        text,
        "\n## {title}\n\n| {} |\n|{}\n",
        heads.join(" | "),
        "---|".repeat(heads.len())
    );
    for row in rows {
        let cells: Vec<_> = row.iter().map(|cell| cell.replace('|', "\\|")).collect();
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
}
