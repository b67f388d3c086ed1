//! Runs the program `netplan`.

use std::io;
use std::process::{Command, Stdio};

/// How long `netplan apply` may take, in seconds: the lock is held that long.
const LIMIT: &str = "40";

/// Applies all files.
pub(super) fn apply() -> io::Result<()> {
    run("apply")
}

/// Reads all files, and changes nothing: fails without netplan, and where one of the files is
/// wrong.
pub(super) fn read() -> io::Result<()> {
    run("get")
}

fn run(command: &str) -> io::Result<()> {
    let mut program = Command::new("timeout");
    program.args(["--kill-after=5", LIMIT, "netplan", command]);
    let output = program.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!(
        "netplan {command}: {}: {}",
        output.status,
        said.trim()
    )))
}
