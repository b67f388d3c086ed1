//! Runs C programs as the ranks of a launcher.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use spark_ccl_testing::free_port;

pub(crate) fn lines(output: &Output) -> Vec<String> {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {error}", output.status);
    let mut lines: Vec<String> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(str::to_owned)
        .collect();
    lines.sort();
    lines
}

/// Runs a program as this number of ranks; the lines that they print, by rank.
pub(crate) fn launch(program: &Path, arguments: &[&str], ranks: usize) -> Vec<Vec<String>> {
    let port = free_port().to_string();
    let size = ranks.to_string();
    let ranks: Vec<_> = (0..ranks)
        .map(|rank| {
            let rank = rank.to_string();
            Command::new(program)
                .args(arguments)
                .env_clear()
                .envs([
                    ("RANK", rank.as_str()),
                    ("WORLD_SIZE", &size),
                    ("LOCAL_RANK", &rank),
                    ("MASTER_ADDR", "127.0.0.1"),
                    ("MASTER_PORT", &port),
                ])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let ended = ranks
        .into_iter()
        .map(|rank| rank.wait_with_output().unwrap());
    let ended: Vec<_> = ended.collect();
    // The first rank that fails may only say that another one has failed.
    for output in &ended {
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
    }
    ended.iter().map(lines).collect()
}

/// Runs a program whose ranks find everything right.
pub(crate) fn verify(program: &Path, arguments: &[&str], ranks: usize) {
    let expected: Vec<_> = (0..ranks)
        .map(|rank| [format!("rank {rank} of {ranks}: right")])
        .collect();
    assert_eq!(launch(program, arguments, ranks), expected);
}
