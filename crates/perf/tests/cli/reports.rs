//! Files: JSON, plots, comparisons.

use std::path::Path;

use serde_json::Value;

use crate::program::{command, run, succeed};

const QUICK: &str = "all_reduce -t 2 -b 1K -e 64K -f 8 -n 2";

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn json_report() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.json");
    let args = format!("{QUICK} -I 1 -J {}", path.display());
    let out = succeed(&args);
    assert!(out.stdout.contains(&format!("{}", path.display())));

    let report = json(&path);
    assert_eq!(report["version"], 3);
    for key in ["start_time", "end_time", "args", "env", "nccl_version"] {
        assert!(!report[key].is_null(), "{key}");
    }
    let config = &report["config"];
    assert_eq!(config["nthreads"], 2);
    assert_eq!(config["minimum_bytes"], 1024);
    assert_eq!(config["step_factor"], 8);
    assert_eq!(config["per_iter_timing"], "true");
    assert_eq!(config["devices"].as_array().unwrap().len(), 2);
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 3);
    assert_eq!(results[1]["size"], 8192);
    assert_eq!(results[1]["type"], "float");
    for way in ["out_of_place", "in_place"] {
        assert!(results[1][way]["time"].as_f64().unwrap() > 0.0);
        assert!(results[1][way]["cpu_time"].is_null());
        assert_eq!(results[1][way]["nwrong"], 0);
    }
    let times = &results[1]["out_of_place_per_iter"]["times_us"];
    assert_eq!(times.as_array().unwrap().len(), 2);
    assert_eq!(report["out_of_bounds"]["okay"], "true");
    assert_eq!(report["errors"].as_array().unwrap().len(), 0);

    // The second report is written to another file.
    let first = std::fs::read(&path).unwrap();
    succeed(&args);
    assert_eq!(std::fs::read(&path).unwrap(), first);
    assert_eq!(json(&directory.path().join("run.json.0"))["version"], 3);
}

#[test]
fn processor_time_is_reported_with_the_time() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.json");
    // Threads share the processor time of their process.
    for ranks in ["-t 2", "--procs 2"] {
        let args = format!(
            "all_reduce {ranks} -b 1M -e 1M -n 4 -C 1 -J {}",
            path.display()
        );
        succeed(&args);
        let way = &json(&path)["results"][0]["in_place"];
        let (time, cpu_time) = (way["time"].as_f64(), way["cpu_time"].as_f64());
        assert!(time.unwrap() > 0.0 && cpu_time.unwrap() > 0.0, "{way}");
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn plots() {
    let directory = tempfile::tempdir().unwrap();
    let svg = directory.path().join("a.svg");
    succeed(&format!("{QUICK} --plot {}", svg.display()));
    let text = std::fs::read_to_string(svg).unwrap();
    assert!(text.contains("all_reduce, 2 ranks") && text.contains(">time<"));

    let png = directory.path().join("a.png");
    succeed(&format!("{QUICK} --plot {}", png.display()));
    assert!(std::fs::read(png).unwrap().starts_with(b"\x89PNG\r\n"));
}

#[test]
fn comparison() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("then.json");
    succeed(&format!("{QUICK} -J {}", path.display()));
    let out = succeed(&format!(
        "all_reduce -t 2 -b 8K -e 512K -f 8 -n 2 --compare {}",
        path.display()
    ));
    let beside = out.stdout.split("# Beside").nth(1).unwrap();
    // Both runs have two of the three sizes.
    let ratios = beside.lines().filter(|line| line.ends_with('x')).count();
    assert_eq!(ratios, 2, "{beside}");
}

#[test]
fn too_little_bandwidth_exits_with_7() {
    let args: Vec<&str> = QUICK.split_whitespace().collect();
    let with = |bandwidth: &str| {
        let mut command = command(&args);
        command.env("NCCL_TESTS_MIN_BW", bandwidth);
        let output = command.output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
        )
    };
    let (code, text) = with("1000000");
    assert_eq!(code, Some(7));
    assert!(text.contains("FAILED"), "{text}");
    assert_eq!(with("0.000001").0, Some(0));
}

#[test]
fn unwritable_files_exit_with_2() {
    let out = run(&format!("{QUICK} -J /nonexistent/a.json"));
    assert_eq!(out.code, Some(2), "{}", out.stderr);
    assert!(out.stderr.contains("/nonexistent/a.json"));
    let out = run(&format!("{QUICK} --plot /nonexistent/a.svg"));
    assert_eq!(out.code, Some(2), "{}", out.stderr);
    assert!(out.stderr.contains("/nonexistent/a.svg"));
}
