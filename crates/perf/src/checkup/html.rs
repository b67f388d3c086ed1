//! The report as one HTML page that needs no other file.

use std::fmt::Write as _;

use spark_ccl_topology::Cluster;

use super::Report;
use super::markdown::{cells, rows, traffic, verdict};
use crate::doctor::Status;
use crate::error::Error;
use crate::report::plot::{self, Chart, Look, Point, Unit, add};
use crate::topo;

const STYLE: &str = "\
body{font:15px/1.45 'DejaVu Sans',Verdana,Helvetica,Arial,sans-serif;color:#222;background:#fff;max-width:1080px;margin:32px auto;\
padding:0 24px}\
h1{font-size:26px;margin:0 0 4px}h2{font-size:19px;margin:36px 0 10px}\
table{border-collapse:collapse;width:100%;font-size:13.5px}\
th,td{text-align:left;vertical-align:top;padding:5px 10px 5px 0;border-bottom:1px solid #e4e4e4;overflow-wrap:break-word}\
th{color:#666;font-weight:600}td:first-child{white-space:nowrap}\
td.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}\
.ok{color:#00734f}.unknown{color:#777}.warn{color:#a85d00;font-weight:600}.fail,.worse{color:#b3261e;font-weight:600}\
.verdict{font-size:16px;margin:6px 0 0}img,svg{max-width:100%;height:auto;display:block}\
@media print{body{margin:0}}";

/// The whole page.
pub(super) fn page(report: &Report<'_>) -> Result<String, Error> {
    let names: Vec<_> = report.hosts.iter().map(|host| host.name.as_str()).collect();
    let title = escaped(&format!("Check of {}", names.join(", ")));
    let mut body = format!(
        "<h1>{title}</h1><p>{} UTC, spark-perf {}</p><p class=\"verdict {}\">{}</p>",
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
        body.push_str(&image(
            &plot::svg(&sweep(report))?,
            "time and bandwidth by size",
        ));
        table(
            &mut body,
            &["size (B)", "time (us)", "busbw (GB/s)"],
            0,
            rows(report),
        );
        body.push_str("<h2>Under load</h2>");
        load(&mut body, report);
        body.push_str("<h2>Bytes by interface</h2>");
        let heads = ["host", "interface", "rail", "sent", "received"];
        table(&mut body, &heads, 3, traffic(report));
    }
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta \
         charset=\"utf-8\"><title>{title}</title><style>{STYLE}</style></head><body>{body}</body></html>\n"
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
    body.push_str("<h2>Changes since the older report</h2><table><tr><th>what</th><th>then</th><th>now</th></tr>");
    for one in &report.changes {
        let class = if one.is_worse { "worse" } else { "unknown" };
        let cells = [&one.what, &one.then, &one.now].map(|it| escaped(it));
        let _ = write!(
            body,
            "<tr class=\"{class}\"><td>{}</td></tr>",
            cells.join("</td><td>")
        );
    }
    body.push_str("</table>");
}

/// The findings, the worst first.
fn findings(body: &mut String, report: &Report<'_>) {
    body.push_str(
        "<h2>Findings</h2><table><tr><th></th><th>hosts</th><th>finding</th><th>seen</th></tr>",
    );
    let mut found: Vec<_> = report.findings.iter().collect();
    found.sort_by_key(|one| std::cmp::Reverse(one.status));
    for one in found {
        let class = one.status.to_string().to_lowercase();
        let [status, hosts, id, seen, todo] = cells(one).try_into().unwrap_or_default();
        let [status, hosts, id, seen, todo] =
            [status, hosts, id, seen, todo].map(|it| escaped(&it));
        let todo = if todo.is_empty() {
            todo
        } else {
            format!("<br>{todo}")
        };
        let _ = write!(
            body,
            "<tr><td \
             class=\"{class}\">{status}</td><td>{hosts}</td><td>{id}</td><td>{seen}{todo}</td></tr>"
        );
    }
    body.push_str("</table>");
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
            add(
                &mut series,
                name.to_owned(),
                Look { color: 0, dashed },
                point,
            );
        }
    }
    Chart {
        title: format!("all_reduce, {} hosts, host memory", report.hosts.len()),
        across: Unit::Bytes,
        series,
    }
}

fn load(body: &mut String, report: &Report<'_>) {
    let rates = || report.load.iter().map(|one| one.bus_bw);
    let Some(slowest) = rates().reduce(f64::min) else {
        body.push_str("<p>none: --minutes 0</p>");
        return;
    };
    let fastest = rates().fold(0.0, f64::max);
    let minutes = report.load.last().map_or(0.0, |one| one.seconds / 60.0);
    let _ = write!(
        body,
        "<p>all_reduce of 16 MiB for {minutes:.1} minutes: {slowest:.2} to {fastest:.2} GB/s \
         (busbw), {} measurements</p>",
        report.load.len()
    );
    body.push_str(&bars(&rates().collect::<Vec<_>>(), fastest));
}

/// The bandwidth over time: a bar for each measurement.
fn bars(rates: &[f64], fastest: f64) -> String {
    const SIZE: [f64; 2] = [1000.0, 120.0];
    let width = SIZE[0] / rates.len() as f64;
    let mut text = format!("<svg viewBox=\"0 0 {} {}\" role=\"img\">", SIZE[0], SIZE[1]);
    for (index, rate) in rates.iter().enumerate() {
        let height = SIZE[1] * rate / fastest;
        let _ = write!(
            text,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\" \
             fill=\"#0072b2\"/>",
            width * index as f64,
            SIZE[1] - height,
            (width * 0.9).max(0.5)
        );
    }
    text + "</svg>"
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
    body.push_str("<table><tr>");
    for (index, head) in heads.iter().enumerate() {
        let style = if index < numbers {
            ""
        } else {
            " style=\"text-align:right\""
        };
        let _ = write!(body, "<th{style}>{head}</th>");
    }
    for row in rows {
        body.push_str("</tr><tr>");
        for (index, cell) in row.iter().enumerate() {
            let _ = write!(body, "<td{}>{}</td>", class(index), escaped(cell));
        }
    }
    body.push_str("</tr></table>");
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
    format!("<img alt=\"{what}\" src=\"data:image/svg+xml;charset=utf-8,{address}\">")
}

/// Text without the characters that have a meaning in HTML.
fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}
