//! The report as one HTML page that needs no other file.

use std::fmt::Write as _;

use spark_ccl_console::plot::{self, Chart, Look, Point, Unit, add};
use spark_ccl_topology::Cluster;

use super::load::Rates;
use super::markdown::{FINDINGS, ROWS, rows, traffic, verdict};
use super::{Report, chart};
use crate::error::Error;
use crate::finding::{Finding, Status};
use crate::topo;

const STYLE: &str = include_str!("style.css");
const VIEW: &str = "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">";

/// The whole page.
pub(super) fn page(report: &Report<'_>) -> Result<String, Error> {
    let names: Vec<_> = report.hosts.iter().map(|host| host.name.as_str()).collect();
    let title = escaped(&format!("Check of {}", names.join(", ")));
    let mut body = format!(
        "<h1>{title}</h1><p class=\"when\">{} UTC, spark-perf {}</p><p class=\"verdict {}\">{}</p>",
        escaped(&report.time),
        report.spark_ccl,
        worst(report),
        escaped(&verdict(report))
    );
    changes(&mut body, report);
    findings(&mut body, report);
    body.push_str("<h2>What joins the hosts</h2>");
    let picture = topo::picture(&Cluster::of(report.hosts));
    body.push_str(&image(&picture, "the hosts and their cables"));
    if report.sweep.is_some() {
        body.push_str("<h2>all_reduce</h2>");
        let drawn = plot::svg(&sweep(report))?;
        body.push_str(&image(&drawn, "time and bandwidth by size"));
        table(&mut body, &ROWS, 0, rows(report));
        body.push_str("<h2>Under load</h2>");
        load(&mut body, report);
        body.push_str("<h2>Bytes by interface</h2>");
        let heads = ["host", "interface", "rail", "sent", "received"];
        table(&mut body, &heads, 3, traffic(report));
    }
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta \
         charset=\"utf-8\">{VIEW}<title>{title}</title><style>\n{STYLE}</style></head>\n\
         <body>{body}</body></html>\n"
    ))
}

/// The class of the verdict.
fn worst(report: &Report<'_>) -> String {
    let worst = report.findings.iter().map(|one| one.status).max();
    let is_worse = report.changes.iter().any(|one| one.is_worse);
    match worst {
        Some(Status::Fail) => "fail".to_owned(),
        _ if is_worse => "worse".to_owned(),
        Some(Status::Warn) => "warn".to_owned(),
        _ => "ok".to_owned(),
    }
}

fn changes(body: &mut String, report: &Report<'_>) {
    if report.changes.is_empty() {
        return;
    }
    body.push_str("<h2>Changes since the older report</h2><div class=\"wide\"><table>");
    body.push_str("<tr><th>what</th><th>then</th><th>now</th></tr>");
    for one in &report.changes {
        let class = if one.is_worse { "worse" } else { "unknown" };
        let cells = [&one.what, &one.then, &one.now].map(|it| escaped(it));
        let _ = write!(
            body,
            "<tr class=\"{class}\"><td>{}</td></tr>",
            cells.join("</td><td>")
        );
    }
    body.push_str("</table></div>");
}

/// The findings, worst first. Findings that are ok come last, and are folded.
fn findings(body: &mut String, report: &Report<'_>) {
    let mut found: Vec<_> = report.findings.iter().collect();
    found.sort_by_key(|one| std::cmp::Reverse(one.status));
    let ok = found.partition_point(|one| one.status != Status::Ok);
    let (others, ok) = found.split_at(ok);
    body.push_str("<h2>Findings</h2>");
    if others.is_empty() {
        body.push_str("<p class=\"ok\">Everything is ok.</p>");
    } else {
        finding_rows(body, &FINDINGS, others);
    }
    if !ok.is_empty() {
        let _ = write!(body, "<details><summary>{} ok</summary>", ok.len());
        // There is nothing to do about them.
        finding_rows(body, &FINDINGS[..4], ok);
        body.push_str("</details>");
    }
}

/// A table of findings, with as many columns as there are heads.
fn finding_rows(body: &mut String, heads: &[&str], found: &[&Finding]) {
    let _ = write!(
        body,
        "<div class=\"wide\"><table class=\"findings\"><tr><th>{}</th></tr>",
        heads.join("</th><th>")
    );
    for one in found {
        let status = one.status.to_string();
        let class = status.to_lowercase();
        let hosts = one.hosts.iter().map(|host| escaped(host));
        let hosts: Vec<_> = hosts
            .map(|host| format!("<span class=\"short\">{host}</span>"))
            .collect();
        let hosts = hosts.join(" - ");
        let _ = write!(
            body,
            "<tr><td class=\"short {class}\">{status}</td><td>{hosts}</td>\
             <td class=\"short\">{}</td>",
            escaped(one.id)
        );
        let wanted = one.wanted.as_deref().unwrap_or_default();
        let texts = [
            ("text", escaped(&one.seen)),
            ("text wanted", escaped(wanted)),
            ("text", todo(one)),
        ];
        for (class, text) in &texts[..heads.len() - 3] {
            let _ = write!(body, "<td class=\"{class}\">{text}</td>");
        }
        body.push_str("</tr>");
    }
    body.push_str("</table></div>");
}

/// The reason why a finding matters, and the mend.
fn todo(one: &Finding) -> String {
    let mut text = escaped(one.why.as_deref().unwrap_or_default());
    let Some(fix) = &one.fix else { return text };
    if !text.is_empty() {
        text.push_str("<br>");
    }
    if let Some(command) = &fix.command {
        let place = escaped(fix.place.as_deref().unwrap_or("there"));
        let _ = write!(text, "On {place}:<code>{}</code>", escaped(command));
    }
    match &fix.look {
        Some(look) if fix.command.is_some() => {
            let _ = write!(text, "Then: {}", escaped(look));
        }
        Some(look) => {
            let _ = write!(text, "Look: {}", escaped(look));
        }
        None => (),
    }
    text
}

fn sweep(report: &Report<'_>) -> Chart {
    let mut series = Vec::new();
    for row in report.sweep.iter().flat_map(|it| &it.results) {
        let modes = [
            ("out of place", false, &row.out_of_place),
            ("in place", true, &row.in_place),
        ];
        for (name, dashed, timing) in modes {
            let Some(timing) = timing else { continue };
            let point = Point {
                x: row.size as f64,
                time_us: timing.time.unwrap_or(0.0),
                bus_bw: timing.bus_bw,
            };
            add(&mut series, name.to_owned(), Look::alone(dashed), point);
        }
    }
    Chart {
        title: format!("all_reduce, {} hosts, host memory", report.hosts.len()),
        across: Unit::Bytes,
        series,
    }
}

fn load(body: &mut String, report: &Report<'_>) {
    let Some(rates) = Rates::of(&report.load) else {
        body.push_str("<p>Nothing was measured.</p>");
        return;
    };
    let minutes = report.load.last().map_or(0.0, |one| one.seconds / 60.0);
    let _ = write!(
        body,
        "<p>all_reduce of 16 MiB for {minutes:.1} minutes, {} measurements: {:.2} to {:.2} \
         GB/s</p><figure>{}</figure>",
        report.load.len(),
        rates.slowest,
        rates.fastest,
        chart::load(&report.load, &rates)
    );
}

/// A table; cells from `numbers` on are numbers.
fn table(
    body: &mut String,
    heads: &[&str],
    numbers: usize,
    rows: impl Iterator<Item = Vec<String>>,
) {
    let class = |index: usize| {
        if index < numbers {
            ""
        } else {
            " class=\"number\""
        }
    };
    body.push_str("<div class=\"wide\"><table class=\"numbers\"><tr>");
    for (index, head) in heads.iter().enumerate() {
        let _ = write!(body, "<th{}>{head}</th>", class(index));
    }
    for row in rows {
        body.push_str("</tr><tr>");
        for (index, cell) in row.iter().enumerate() {
            let _ = write!(body, "<td{}>{}</td>", class(index), escaped(cell));
        }
    }
    body.push_str("</tr></table></div>");
}

/// A picture in the page itself. As an image, its style does not reach the page's other pictures.
fn image(svg: &str, what: &str) -> String {
    let mut address = String::with_capacity(svg.len());
    for one in svg.chars() {
        match one {
            '%' | '#' | '"' | '<' | '>' | '&' | '\n' => {
                let _ = write!(address, "%{:02X}", one as u32);
            }
            other => address.push(other),
        }
    }
    format!(
        "<figure><img alt=\"{what}\" \
         src=\"data:image/svg+xml;charset=utf-8,{address}\"></figure>"
    )
}

/// Text without the characters that have a meaning in HTML.
fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use spark_ccl_topology::testing;

    use super::super::tests::empty;
    use super::*;
    use crate::finding::{Fix, Problem};

    #[test]
    fn what_is_wanted_has_its_column_and_what_is_ok_is_folded() {
        let hosts = testing::hosts(&testing::pair());
        let mut report = empty(&hosts);
        let fix = Fix::run("y", "set it").then("log in");
        let problem = Problem::new("1500", "9000", "packets are small", fix);
        report.findings = vec![
            Finding::ok("a.fine", &["x"], "fine"),
            Finding::fail("net.mtu", &["x", "y"], problem),
        ];
        let page = page(&report).unwrap();
        let (open, folded) = page.split_once("<details>").unwrap();
        assert!(open.contains("<th>seen</th><th>wanted</th>"), "{open}");
        assert!(
            open.contains(">1500</td><td class=\"text wanted\">9000</td>"),
            "{open}"
        );
        assert!(open.contains("packets are small<br>On y:<code>set it</code>Then: log in"));
        assert!(
            open.contains("net.mtu") && !open.contains("a.fine"),
            "{open}"
        );
        assert!(folded.contains("<summary>1 ok</summary>") && folded.contains("a.fine"));
    }

    #[test]
    fn a_page_suits_small_screens_and_dark_ones() {
        let hosts = testing::hosts(&testing::pair());
        let page = page(&empty(&hosts)).unwrap();
        assert!(page.contains("name=\"viewport\" content=\"width=device-width"));
        assert!(page.contains("@media (prefers-color-scheme: dark)"));
        assert!(page.contains("color-scheme: light dark"));
    }
}
