//! Combines the ends of all ranks: messages, and one exit code.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use spark_ccl_console::{exit, print_error};

/// The combined result of the processes.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// The first exit code of a process that reported an error itself.
    reported: Option<u8>,
    /// Whether a signal has killed a process.
    killed: bool,
    /// Whether this process kills the others.
    pub(super) past_deadline: bool,
    /// The signal that this process has received.
    pub(super) signalled: Option<i32>,
}

impl Outcome {
    /// Records the end of a process; returns whether it failed.
    pub(super) fn record(&mut self, process: usize, status: &std::io::Result<ExitStatus>) -> bool {
        match status {
            Ok(status) if status.success() => return false,
            Ok(status) => match (status.code(), status.signal()) {
                (Some(code), _) => {
                    self.reported
                        .get_or_insert(u8::try_from(code).unwrap_or(exit::LIBRARY));
                }
                (None, signal) => {
                    self.killed = true;
                    if self.signalled.is_none() && !self.past_deadline {
                        print_error(format_args!(
                            "process {process} was killed by signal {}",
                            signal.unwrap_or(0)
                        ));
                    } else if self.past_deadline && self.signalled.is_none() {
                        print_error(format_args!(
                            "process {process} did not end within {} s of the first failure and \
                             was killed",
                            super::GRACE.as_secs()
                        ));
                    }
                }
            },
            Err(error) => {
                print_error(format_args!("waiting for process {process}: {error}"));
                self.killed = true;
            }
        }
        true
    }

    pub(super) fn code(&self) -> u8 {
        match (self.signalled, self.reported) {
            (Some(signal), _) => u8::try_from(128 + signal).unwrap_or(exit::LIBRARY),
            (None, Some(code)) => code,
            (None, None) if self.killed => exit::LIBRARY,
            (None, None) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(raw: &[i32]) -> u8 {
        let mut outcome = Outcome::default();
        for (process, raw) in raw.iter().enumerate() {
            outcome.record(process, &Ok(ExitStatus::from_raw(*raw)));
        }
        outcome.code()
    }

    #[test]
    fn the_first_report_wins_over_deaths() {
        // Raw wait statuses: an exit code is shifted by 8 bits, a signal is not.
        assert_eq!(outcome(&[0, 0]), 0);
        assert_eq!(outcome(&[0, 6 << 8]), 6);
        assert_eq!(outcome(&[9, 4 << 8, 3 << 8]), 4);
        assert_eq!(outcome(&[9, 0]), 3);
    }
}
