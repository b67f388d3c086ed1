//! Runs spark-perf and reads its table.

use std::process::{Command, Output, Stdio};

/// What a run printed.
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The program with arguments, in an environment without launchers and settings.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spark-perf"));
    command
        .env_clear()
        .args(args)
        // Against deadlock only; given flags win, and other commands than measurements have none.
        .args(
            if args.contains(&"-T") || matches!(args.first(), Some(&("simulate" | "tune" | "gids")))
            {
                &[][..]
            } else {
                &["-T", "120"]
            },
        )
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs the program to its end; `args` are separated by spaces.
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
    /// The table's rows, in words.
    pub(crate) fn rows(&self) -> Vec<Vec<&str>> {
        let rows = self.stdout.lines().filter(|line| !line.starts_with('#'));
        rows.map(|line| line.split_whitespace().collect()).collect()
    }

    /// The `#wrong` columns of a row without empty and additional columns.
    pub(crate) fn wrong(row: &[&str]) -> [u64; 2] {
        assert_eq!(row.len(), 13, "{row:?}");
        [row[8].parse().unwrap(), row[12].parse().unwrap()]
    }
}
