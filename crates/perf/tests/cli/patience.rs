//! The messages to users while they wait.

use std::path::Path;
use std::time::{Duration, Instant};

use spark_ccl_topology::testing;

use crate::cluster::Cluster;
use crate::program::{Run, command};

/// Runs a command on two hosts, by a stand-in for ssh. It answers at once, or for the second host
/// after three seconds.
fn on_two_hosts(folder: &Path, name: &str, is_slow: bool) -> Run {
    for (number, host) in (1..).zip(testing::hosts(&testing::pair())) {
        std::fs::write(folder.join(format!("198.51.100.{number}")), host.to_json()).unwrap();
    }
    let second = if is_slow { "sleep 3;" } else { "" };
    let answer = format!(
        "case \"$*\" in *' -- 198.51.100.2 '*) {second} host=198.51.100.2;; *) host=198.51.100.1;; esac\ncat {}/$host\n",
        folder.display()
    );
    let script = folder.join("ssh");
    std::fs::write(&script, answer).unwrap();
    // The file is not run itself: a child of another thread may still have it open for writing.
    let ssh = format!("sh {}", script.display());
    let mut command = command(&[name, "-H", "198.51.100.1,198.51.100.2"]);
    command.args(["--ssh", &ssh]).output().unwrap().into()
}

/// How often the user is told to be patient, and for which hosts.
fn told(run: &Run) -> Vec<&str> {
    let start = "spark-perf: asking 2 hosts over ssh; no answer yet from ";
    let lines = run.stderr.lines();
    lines.filter_map(|line| line.strip_prefix(start)).collect()
}

#[test]
fn who_waits_for_a_host_is_told_which() {
    let folder = tempfile::tempdir().unwrap();
    for command in ["topo", "env"] {
        let run = on_two_hosts(folder.path(), command, true);
        assert_eq!(
            told(&run),
            ["198.51.100.2 (60 s at most)"],
            "{}",
            run.stderr
        );
    }
    // It asks for the ports, too.
    let run = on_two_hosts(folder.path(), "doctor", true);
    let ports = "198.51.100.2 (40 s at most)";
    let expected = ["198.51.100.2 (60 s at most)", ports, ports];
    assert_eq!(told(&run), expected, "{}", run.stderr);
}

#[test]
fn who_need_not_wait_is_told_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for command in ["topo", "env", "doctor"] {
        let begin = Instant::now();
        let run = on_two_hosts(folder.path(), command, false);
        // A machine may stand still for longer.
        if begin.elapsed() < Duration::from_secs(2) {
            assert!(!run.stderr.contains("asking"), "{}", run.stderr);
        }
    }
}

#[test]
fn who_looks_for_hosts_is_told_how_long() {
    let Some(cluster) = Cluster::new(0) else {
        return;
    };
    let mut command = cluster.command(&["discover", "--seconds", "3"]);
    let run = Run::from(command.output().unwrap());
    let told = run.stderr.matches("looking for hosts for 3 s").count();
    assert_eq!(told, 1, "{}", run.stderr);
}
