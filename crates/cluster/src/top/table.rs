//! A report as a table.

use std::fmt::Write;
use std::time::Duration;

use spark_ccl_config::HostPort;
use spark_ccl_status::ras::{Communicator, INTERNAL, Missing, Rank, Report};

/// A longer call is cut, and so is a longer name of a host.
const CALL_WIDTH: usize = 44;
const HOST_WIDTH: usize = 16;

/// A report from an address. With an earlier report and its age, calls per second are shown, too.
pub(super) fn table(
    report: &Report,
    address: &HostPort,
    earlier: Option<(Duration, &Report)>,
) -> String {
    let mut text = format!(
        "{} at {address}, {} UTC\n",
        printable(&report.nccl_version),
        printable(&report.timestamp)
    );
    if report.communicators.is_empty() {
        text.push_str("no communicators\n");
    }
    for communicator in &report.communicators {
        head(&mut text, communicator);
        let before = earlier.and_then(|(ago, report)| {
            let all = &mut report.communicators.iter();
            Some((ago, all.find(|other| other.hash == communicator.hash)?))
        });
        rows(&mut text, communicator, before);
    }
    text
}

fn head(text: &mut String, communicator: &Communicator) {
    let answers = communicator.ranks.len();
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "\ncommunicator {}: {answers} of {} ranks answer",
        printable(&communicator.hash),
        communicator.size
    );
    if let Some(fault) = &communicator.spark_ccl.fault {
        let _ = writeln!(text, "FAILED: {}", printable(fault));
    }
    let _ = writeln!(
        text,
        "{:>6}  {:<HOST_WIDTH$}  {:>8}  {:>10}  {:>8}  {:>10}  {:<CALL_WIDTH$}  state",
        "rank", "host", "pid", "calls", "per s", "finished", "last call"
    );
}

fn rows(text: &mut String, communicator: &Communicator, before: Option<(Duration, &Communicator)>) {
    let mut rows: Vec<(u32, String)> = Vec::new();
    for rank in &communicator.ranks {
        rows.push((rank.rank, row(rank, before)));
    }
    for rank in &communicator.missing_ranks {
        rows.push((rank.rank, missing(rank)));
    }
    rows.sort();
    for (_, row) in rows {
        text.push_str(row.trim_end());
        text.push('\n');
    }
}

fn row(rank: &Rank, before: Option<(Duration, &Communicator)>) -> String {
    let more = &rank.spark_ccl;
    let then = before.and_then(|(ago, communicator)| {
        let mut ranks = communicator.ranks.iter();
        let then = ranks.find(|then| then.rank == rank.rank)?;
        Some((ago, calls(then)))
    });
    let calls = calls(rank);
    let rate = then.map(|(ago, then)| calls.saturating_sub(then) as f64 / ago.as_secs_f64());
    let call = more
        .call
        .as_ref()
        .map(|call| format!("#{} {call}", more.entered));
    let state = match (&more.waits, more.late_sec) {
        (_, Some(sec)) => format!("LATE by {sec:.1} s"),
        (Some(wait), None) => printable(&wait.in_words()),
        (None, None) => String::new(),
    };
    format!(
        "{:6}  {:<HOST_WIDTH$}  {:8}  {calls:10}  {:>8}  {:10}  {:<CALL_WIDTH$}  {state}",
        rank.rank,
        cut(&rank.host, HOST_WIDTH),
        rank.pid,
        rate.map(|rate| format!("{rate:.0}")).unwrap_or_default(),
        more.finished,
        cut(call.as_deref().unwrap_or_default(), CALL_WIDTH),
    )
}

/// The number of calls that the program has made, on all memory.
fn calls(rank: &Rank) -> u64 {
    let all = rank.spark_ccl.calls.iter();
    let of_program = all.filter(|&(name, _)| name != INTERNAL);
    of_program.map(|(_, count)| count).sum()
}

fn missing(rank: &Missing) -> String {
    let state = if rank.status.considered_dead {
        "DEAD"
    } else if rank.status.unresponsive {
        "DOES NOT ANSWER"
    } else {
        "has left"
    };
    format!(
        "{:6}  {:<HOST_WIDTH$}  {:8}  {:10}  {:>8}  {:10}  {:<CALL_WIDTH$}  {state}",
        rank.rank,
        cut(&rank.host, HOST_WIDTH),
        rank.pid,
        "",
        "",
        "",
        ""
    )
}

/// A text of others, without control characters.
fn printable(text: &str) -> String {
    let shown = |letter: char| if letter.is_control() { '?' } else { letter };
    text.chars().map(shown).collect()
}

/// The beginning of a text.
fn cut(text: &str, width: usize) -> String {
    let text = printable(text);
    if text.chars().count() <= width {
        return text;
    }
    let kept: String = text.chars().take(width - 1).collect();
    format!("{kept}~")
}
