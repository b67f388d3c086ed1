//! Real launchers start the example `kv`, in which rank 0 broadcasts two values.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::PathBuf;
use std::process::{Command, Output};

use spark_ccl_testing::{Need, has};

/// The example's path: Cargo builds examples next to the folder of the test binaries.
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
    // Launchers complain with these words if a rank does not finalize.
    let complaints = String::from_utf8_lossy(&output.stderr).to_lowercase();
    for complaint in ["finalize", "bad termination"] {
        assert!(!complaints.contains(complaint), "{complaints}");
    }
}

#[test]
fn open_mpi() {
    // mpirun refuses to run as root, and on fewer cores than ranks, unless told otherwise.
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
