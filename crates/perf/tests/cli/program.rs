//! Runs spark-perf and parses its table.

use std::process::{Command, Output, Stdio};

/// What a run printed.
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The commands that do not measure collectives.
pub(crate) const COMMANDS: [&str; 14] = [
    "simulate", "tune", "gids", "topo", "doctor", "env", "tcp_bw", "rdma_bw", "rdma_lat", "launch",
    "netplan", "discover", "top", "check",
];
/// Those of them that wait for no other rank.
const ALONE: [&str; 11] = [
    "simulate", "tune", "gids", "topo", "doctor", "env", "launch", "netplan", "discover", "top",
    "check",
];

/// The program with arguments, in an environment without launchers and settings. Unless the
/// arguments choose a backend, it measures host memory, even on machines with GPUs.
pub(crate) fn command(args: &[&str]) -> Command {
    let measures = !args.first().is_some_and(|first| COMMANDS.contains(first));
    let backend = measures && !args.contains(&"--backend");
    let mut command = Command::new(env!("CARGO_BIN_EXE_spark-perf"));
    // The variables that locate the GPUs' libraries.
    let libraries = ["LD_LIBRARY_PATH", "SPARK_CCL_NCCL_LIBRARY"];
    let kept = libraries.map(|name| std::env::var_os(name).map(|value| (name, value)));
    command
        .env_clear()
        .envs(kept.into_iter().flatten())
        .args(args)
        // Only guards against deadlock. A given -T takes precedence, and not all commands have it.
        .args(
            if args.contains(&"-T") || args.first().is_some_and(|first| ALONE.contains(first)) {
                &[][..]
            } else {
                &["-T", "120"]
            },
        )
        .args(if backend {
            &["--backend", "host"][..]
        } else {
            &[]
        })
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs the program to the end; `args` are separated by spaces.
pub(crate) fn run(args: &str) -> Run {
    let args: Vec<&str> = args.split_whitespace().collect();
    command(&args).output().unwrap().into()
}

/// Runs the program, which must succeed.
pub(crate) fn succeed(args: &str) -> Run {
    let run = run(args);
    assert_eq!(run.code, Some(0), "{args}\n{}\n{}", run.stdout, run.stderr);
    run
}

impl From<Output> for Run {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Run {
    /// The rows of the table, split into words.
    pub(crate) fn rows(&self) -> Vec<Vec<&str>> {
        let rows = self.stdout.lines().filter(|line| !line.starts_with('#'));
        rows.map(|line| line.split_whitespace().collect()).collect()
    }

    /// The `#wrong` columns of a row without empty or additional columns.
    pub(crate) fn wrong(row: &[&str]) -> [u64; 2] {
        assert_eq!(row.len(), 13, "{row:?}");
        [row[8].parse().unwrap(), row[12].parse().unwrap()]
    }
}
