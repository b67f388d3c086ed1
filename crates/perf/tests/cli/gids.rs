//! The list of RDMA ports, and its absence.

use spark_ccl_testing::{Need, has};

use crate::program::{Run, command, run, succeed};

fn with(name: &str, value: &str) -> Run {
    command(&["gids"]).env(name, value).output().unwrap().into()
}

#[test]
fn missing_rdma_is_reported() {
    let run = run("gids");
    // This machine may have a device.
    assert!(
        run.code == Some(0) || run.code == Some(2) && run.stderr.contains("no RDMA here: "),
        "{}",
        run.stderr
    );
}

#[test]
fn gids_are_listed() {
    if !has(Need::Rails) {
        return;
    }
    let run = succeed("gids");
    println!("{}", run.stdout);
    let used = |line: &&str| line.contains("  used: IPv4 and RoCE v2 come first");
    let ports = run
        .stdout
        .lines()
        .filter(|line| line.contains("  active  4096 B  "))
        .count();
    assert!(ports >= 2, "{}", run.stdout);
    assert_eq!(
        run.stdout.lines().filter(used).count(),
        ports,
        "{}",
        run.stdout
    );

    let list: serde_json::Value = serde_json::from_str(&succeed("gids --json").stdout).unwrap();
    assert_eq!(list["format"], 1);
    let listed = list["ports"].as_array().unwrap().iter();
    let is_used = |port: &&serde_json::Value| port["used"]["why"] == "IPv4 and RoCE v2 come first";
    assert_eq!(listed.filter(is_used).count(), ports, "{list:#}");

    let none = with("NCCL_IB_HCA", "^rxe");
    assert!(
        !none.stdout.lines().any(|line| used(&line)),
        "{}",
        none.stdout
    );
    assert!(
        none.stdout
            .contains("not used: ruled out by NCCL_IB_HCA=^rxe")
    );
    let index = with("NCCL_IB_GID_INDEX", "0").stdout;
    assert!(
        index.contains("used: NCCL_IB_GID_INDEX (from environment) allows 0 only"),
        "{index}"
    );
}

#[test]
fn gids_names_a_library_that_is_missing() {
    let run = with("SPARK_CCL_IBVERBS_LIBRARY", "/nowhere/libibverbs.so.1");
    assert_eq!(run.code, Some(2));
    assert!(
        run.stderr.contains("no RDMA here: ") && run.stderr.contains("/nowhere/libibverbs.so.1"),
        "{}",
        run.stderr
    );
    let run = with("NCCL_IB_GID_INDEX", "many");
    assert_eq!(run.code, Some(6), "{}", run.stderr);
}
