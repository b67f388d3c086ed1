//! Lines written by the queue's thread, so that no other thread waits for a full pipe or a file
//! system that hangs.

use std::fs::File;
use std::io;
use std::sync::Arc;

use crate::job::{Job, LogFile, Out};
use crate::queue;

/// Prints a line to standard error. Returns at once; if standard error takes nothing for long, the
/// line may be lost.
pub fn tell(line: impl Into<String>) {
    let mut text = line.into();
    text.push('\n');
    let out = Out::Stderr;
    queue::push(Job { text, out });
}

/// Tells the user something although no setting asks for logs: as a warning if a subscriber takes
/// log events, else as a line on standard error.
pub fn remark(text: &str) {
    if tracing::dispatcher::has_been_set() {
        crate::warn!("{text}");
    } else {
        tell(format!("spark-ccl: {text}"));
    }
}

/// A writer that returns at once. The text of one call is written in one piece, or counted as lost.
#[derive(Clone)]
pub struct Lines(Option<Arc<LogFile>>);

impl Lines {
    /// Writes to standard error.
    pub fn to_stderr() -> Self {
        Self(None)
    }

    /// Writes to a file, which `open` opens before the first line, in the thread that writes: it
    /// may take as long as it likes. If it fails, it has reported that itself, and the lines go to
    /// standard error.
    pub fn to_file(open: impl Fn() -> Option<File> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(LogFile::new(open))))
    }
}

impl io::Write for Lines {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(lines).into_owned();
        let out = self.0.clone().map_or(Out::Stderr, Out::File);
        queue::push(Job { text, out });
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
