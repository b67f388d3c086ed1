//! Real launchers start the example, whose ranks tell each other two values.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::PathBuf;
use std::process::{Command, Output};

use spark_ccl_testing::{Need, has};

/// Cargo builds examples beside the folder of the test binaries.
fn example() -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.push("examples/kv");
    assert!(path.exists(), "{} is not built", path.display());
    path
}

fn run(launcher: &str, arguments: &[&str], ranks: usize) -> Output {
    let mut command = Command::new("timeout");
    command.args(["120", launcher]).args(arguments);
    command.args(["-n", &ranks.to_string()]).arg(example());
    command.output().unwrap()
}

fn check(kind: &str, ranks: usize, output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    for rank in 0..ranks {
        let line = format!("{kind}: rank {rank} of {ranks}: ok");
        assert!(text.contains(&line), "no {line:?} in {text}");
    }
    // What launchers say when they miss the goodbye.
    let complaints = String::from_utf8_lossy(&output.stderr).to_lowercase();
    for complaint in ["finalize", "bad termination"] {
        assert!(!complaints.contains(complaint), "{complaints}");
    }
}

#[test]
fn open_mpi() {
    // Root must say that it means it, and a machine may have fewer cores than ranks.
    let arguments = ["--allow-run-as-root", "--oversubscribe"];
    if !has(Need::Launchers) {
        return;
    }
    for ranks in [1, 4] {
        let output = run("mpirun.openmpi", &arguments, ranks);
        check("Open MPI", ranks, &output);
    }
}

#[test]
fn mpich() {
    if !has(Need::Launchers) {
        return;
    }
    for ranks in [1, 4] {
        let output = run("mpiexec.hydra", &[], ranks);
        check("MPICH (Hydra)", ranks, &output);
    }
}
