//! Runs programs of the system.

use std::io;
use std::process::{Command, Stdio};

/// The output of a program; `line` is its command line, separated by spaces.
///
/// An error names the command line, and why it failed, in the program's own words.
pub(crate) fn output_of(line: &str) -> io::Result<String> {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or_default());
    let output = command.args(words).stdin(Stdio::null()).output();
    let failed = |why: String| io::Error::other(format!("{line}: {why}"));
    let output = output.map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(failed(format!("{}: {}", output.status, said.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_in_the_programs_words() {
        assert_eq!(output_of("echo a  b").unwrap(), "a b\n");
        let error = output_of("ls /nonexistent").unwrap_err().to_string();
        assert!(
            error.starts_with("ls /nonexistent: exit status: "),
            "{error}"
        );
        assert!(error.contains("No such file"), "{error}");
        let error = output_of("/nonexistent x").unwrap_err().to_string();
        assert!(error.starts_with("/nonexistent x: "), "{error}");
    }
}
