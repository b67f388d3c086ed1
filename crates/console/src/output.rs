//! Prints on standard output and standard error.
//!
//! Knows nothing but text and errors.

use std::io::{self, Write};

use serde::Serialize;

use crate::error::Error;

/// Writes to standard output at once.
///
/// # Errors
///
/// If it cannot be written to.
pub fn print(text: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(Error::system("writing to standard output"))
}

/// A value as JSON, over several lines.
///
/// ```
/// # use spark_ccl_console::json;
/// assert_eq!(json(&[1])?, "[\n  1\n]\n");
/// # Ok::<(), spark_ccl_console::Error>(())
/// ```
///
/// # Errors
///
/// If a key of a map is no text.
pub fn json(value: &impl Serialize) -> Result<String, Error> {
    let text = serde_json::to_string_pretty(value);
    Ok(text.map_err(Error::system("writing JSON"))? + "\n")
}

/// Writes a line to standard error with one call, so that lines of ranks that fail together do not
/// mix.
pub fn print_error(line: std::fmt::Arguments) {
    let line = format!("spark-perf: {line}");
    let lines: Vec<_> = line.lines().map(plain).collect();
    let line = format!("{}\n", lines.join("\n"));
    // A failure to print cannot be reported.
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Text of other hosts without the control characters that a terminal would obey.
///
/// ```
/// # use spark_ccl_console::plain;
/// assert_eq!(plain("a\u{1b}[31m"), "a[31m");
/// ```
pub fn plain(text: &str) -> String {
    text.chars().filter(|one| !one.is_control()).collect()
}
