//! `spark-perf check` of two hosts: from ssh to the report, and the comparison with an older one.

use std::path::Path;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::program::Run;

/// Checks two hosts for as short a time as can be.
fn check(cluster: &Cluster, more: &[&str]) -> Run {
    let ssh = cluster.ssh();
    let mut args = vec![
        "check",
        "--ssh",
        &ssh,
        "-H",
        "node1,node2",
        "--minutes",
        "0",
    ];
    args.extend(more);
    cluster.command(&args).output().unwrap().into()
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&text(path)).unwrap()
}

/// The report of this folder in all its forms.
fn assert_whole(folder: &Path) {
    let report = json(&folder.join("check.json"));
    let found = report["findings"].as_array().unwrap();
    for id in [
        "pair.port",
        "probe.tcp",
        "probe.collective",
        "check.sweep",
        "check.traffic",
    ] {
        let mut own = found.iter().filter(|one| one["id"] == id).peekable();
        assert!(own.peek().is_some(), "{id}: {found:#?}");
        assert!(own.all(|one| one["status"] != "fail"), "{id}: {found:#?}");
    }
    let sizes = report["sweep"]["results"].as_array().unwrap().len();
    assert_eq!(sizes, 12, "8 B to 64 MiB, four times as much each");
    let rails = report["traffic"].as_array().unwrap().iter();
    assert_eq!(rails.filter(|one| one["rail"] == true).count(), 4);

    let markdown = text(&folder.join("check.md"));
    for part in [
        "# Check of ",
        "\n## Findings\n",
        "\n## all_reduce\n",
        "\n## Bytes by interface\n",
        "| check.traffic |",
        "| rail0 | yes |",
    ] {
        assert!(markdown.contains(part), "{part}\n{markdown}");
    }
    let page = text(&folder.join("check.html"));
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
    for part in [
        "<h1>Check of ",
        "<h2>all_reduce</h2>",
        "check.traffic",
        "rail1",
        "data:image/svg+xml",
    ] {
        assert!(page.contains(part), "{part}");
    }
    // It needs no other file.
    for part in ["src=\"http", "<link", "<script src", "href=\"http"] {
        assert!(!page.contains(part), "{part}");
    }
}

/// A report in which everything was a thousand times as fast, except the bandwidth of TCP, which
/// was a thousand times as slow.
fn altered(report: &Value) -> String {
    let mut report = report.clone();
    let scale = |value: &mut Value, by: f64| *value = (value.as_f64().unwrap() * by).into();
    for row in report["sweep"]["results"].as_array_mut().unwrap() {
        scale(&mut row["out_of_place"]["time"], 1e-3);
        scale(&mut row["out_of_place"]["bus_bw"], 1e3);
    }
    for row in report["probed"]["pairs"][0]["tcp"]["Ok"]["rows"]
        .as_array_mut()
        .unwrap()
    {
        scale(&mut row["gb_per_s"], 1e-3);
    }
    report.to_string()
}

#[test]
fn a_check_is_reported_and_compared() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    cluster.rails();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let run = check(&cluster, &["--report", &path("first")]);
    assert_eq!(run.code, Some(0), "{}\n{}", run.stdout, run.stderr);
    assert!(run.stdout.contains("# 0 fail, "), "{}", run.stdout);
    assert_whole(&folder.path().join("first"));

    // How fast it is now is not known, but each row finds its own in the older report.
    let older = path("first/check.json");
    let run = check(
        &cluster,
        &["--compare", &older, "--report", &path("second")],
    );
    assert!(
        matches!(run.code, Some(0 | 7)),
        "{}\n{}",
        run.stdout,
        run.stderr
    );
    let second = json(&folder.path().join("second/check.json"));
    let changes = second["changes"].as_array().unwrap();
    assert!(
        changes.iter().all(|one| one["now"] != "missing"),
        "{changes:#?}"
    );

    std::fs::write(path("altered.json"), altered(&json(Path::new(&older)))).unwrap();
    let run = check(&cluster, &["--compare", &path("altered.json"), "--json"]);
    assert_eq!(run.code, Some(7), "{}\n{}", run.stdout, run.stderr);
    let third: Value = serde_json::from_str(&run.stdout).unwrap();
    let changes = third["changes"].as_array().unwrap();
    let of = |start: &str, is_worse: bool| {
        let own = changes
            .iter()
            .filter(|one| one["what"].as_str().unwrap().starts_with(start));
        own.filter(|one| one["is_worse"] == is_worse).count()
    };
    assert_eq!(
        [of("all_reduce of", true), of("all_reduce of", false)],
        [12, 0],
        "{changes:#?}"
    );
    // Each rail, and both.
    assert_eq!(
        [of("TCP of", true), of("TCP of", false)],
        [0, 3],
        "{changes:#?}"
    );
}

#[test]
fn what_cannot_be_compared_is_refused_before_anything_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("older.json");
    std::fs::write(&file, "{}").unwrap();
    let run = crate::program::run(&format!("check -H a,b --compare {}", file.display()));
    assert_eq!(run.code, Some(6), "{}", run.stderr);
    assert!(
        run.stderr.contains("no report of spark-perf check"),
        "{}",
        run.stderr
    );
}

/// Checks that this machine cannot do are listed, too, with the reason.
#[test]
fn all_that_hardware_must_show_is_listed_in_order() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    cluster.rails();
    let run = check(&cluster, &["--hardware", "--json"]);
    assert_eq!(run.code, Some(0), "{}\n{}", run.stdout, run.stderr);
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let numbers: Vec<(u32, u32)> = checks
        .iter()
        .map(|one| {
            let (part, place) = one["number"].as_str().unwrap().split_once('.').unwrap();
            (part.parse().unwrap(), place.parse().unwrap())
        })
        .collect();
    let parts = [12, 2, 5, 10, 7, 1].into_iter().zip(1..);
    let expected = parts.flat_map(|(count, part)| (1..=count).map(move |place| (part, place)));
    assert_eq!(numbers, expected.collect::<Vec<_>>(), "{}", run.stdout);
    for one in checks {
        let text = |name: &str| one[name].as_str().unwrap().to_owned();
        assert!(
            !text("expected").is_empty() && !text("seen").is_empty(),
            "{one}"
        );
    }
    let of = |number: &str| checks.iter().find(|one| one["number"] == number).unwrap();
    // Here are network interfaces, and neither RDMA nor GPUs.
    for number in ["1.1", "1.4", "3.1", "3.2", "3.3", "4.2", "4.3"] {
        assert_eq!(of(number)["status"], "ok", "{}", of(number));
    }
    assert!(of("4.3")["seen"].as_str().unwrap().contains("rank 1"));
    for number in ["1.5", "1.11", "1.12", "2.1", "4.9"] {
        let seen = of(number)["seen"].as_str().unwrap();
        assert!(seen.starts_with("not run: "), "{number}: {seen}");
    }
    cluster.until_clean();
}

#[test]
fn hardware_that_does_not_answer_is_told_check_by_check() {
    let Some(cluster) = Cluster::with_idle(1, 1) else {
        return;
    };
    let run = cluster
        .command(&[
            "check",
            "--hardware",
            "--ssh",
            &cluster.ssh(),
            "-H",
            "node1,absent",
        ])
        .output();
    let run = Run::from(run.unwrap());
    assert_eq!(run.code, Some(1), "{}\n{}", run.stdout, run.stderr);
    let named = "FAIL     1.1   hosts: absent: ";
    assert!(run.stdout.contains(named), "{}", run.stdout);
    assert!(
        run.stdout.contains("not run: not all hosts answer"),
        "{}",
        run.stdout
    );
}
