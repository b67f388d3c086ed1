//! Messages on standard error, to which several processes write at once.

use std::io::Write;

/// Writes a line with one call, so that lines of ranks that fail together do not mix.
pub(crate) fn print_error(line: std::fmt::Arguments) {
    let line = format!("spark-perf: {line}\n");
    // A failure to print cannot be reported.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
