//! `doctor --probe` and `check`: the rates between hosts, measured between real processes.

use serde_json::Value;

use crate::cluster::Cluster;
use crate::program::{Run, run};

/// Doctor's measurements on two hosts, and its exit code.
fn probed(cluster: &Cluster) -> (Option<i32>, Vec<Value>) {
    let ssh = cluster.ssh();
    let args = [
        "doctor",
        "--probe",
        "--json",
        "--ssh",
        &ssh,
        "-H",
        "node1,node2",
    ];
    let run = Run::from(cluster.command(&args).output().unwrap());
    let printed: Value = serde_json::from_str(&run.stdout).unwrap();
    let found = printed["findings"].as_array().unwrap().iter();
    let probed = found.filter(|one| one["id"].as_str().unwrap().starts_with("probe."));
    (run.code, probed.cloned().collect())
}

#[test]
fn rails_are_measured_and_a_slow_one_is_named() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    cluster.rails();
    let (code, found) = probed(&cluster);
    assert_eq!(code, Some(0), "{found:#?}");
    // Each rail, both, and the collective.
    assert_eq!(found.len(), 4, "{found:#?}");
    assert!(found.iter().all(|one| one["status"] == "ok"), "{found:#?}");

    cluster.on(
        1,
        "tc qdisc add dev rail1 root tbf rate 200mbit burst 64kb latency 50ms",
    );
    let (code, found) = probed(&cluster);
    assert_eq!(code, Some(0), "{found:#?}");
    let slow: Vec<_> = found.iter().filter(|one| one["status"] == "warn").collect();
    assert_eq!(slow.len(), 1, "{found:#?}");
    assert!(
        slow[0]["seen"].as_str().unwrap().contains("rail1"),
        "{found:#?}"
    );
}

#[test]
fn one_host_cannot_be_probed() {
    let run = run("doctor --probe");
    assert_eq!(run.code, Some(6), "{}", run.stderr);
}
