//! What is said on standard error, where several processes write at once.

use std::io::Write;

/// Writes a line in one piece, so that lines of ranks that fail together do not mix.
pub(crate) fn complain(line: std::fmt::Arguments) {
    let line = format!("spark-perf: {line}\n");
    // Nothing can be done about a closed terminal.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
