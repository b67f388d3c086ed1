//! A progress bar on standard error, only for terminals and long runs.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Shorter runs show no bar.
const PATIENCE: Duration = Duration::from_secs(5);

/// Progress through the rows of the table.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    start: Instant,
}

impl Progress {
    /// For a table of `lines` rows; 0 if the number is unknown.
    pub(crate) fn new(lines: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(lines), ProgressDrawTarget::hidden());
        if let Ok(style) =
            ProgressStyle::with_template("{elapsed_precise} [{bar:40}] line {pos} of {len}")
        {
            bar.set_style(style.progress_chars("=> "));
        }
        Self {
            bar,
            start: Instant::now(),
        }
    }

    /// Counts a row; `print` writes it while the bar is hidden.
    pub(crate) fn line<R>(&self, print: impl FnOnce() -> R) -> R {
        let result = self.bar.suspend(print);
        if self.bar.is_hidden()
            && self.bar.length().is_some_and(|lines| lines > 1)
            && self.start.elapsed() > PATIENCE
        {
            // Stays hidden if standard error is not a terminal.
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.inc(1);
        result
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
