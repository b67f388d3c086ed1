//! A text, and where it goes: to the subscriber, to standard error, or to a file.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use once_cell::race::OnceBox;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// Bytes that a job takes in the queue besides its text.
const OVERHEAD: usize = 64;

/// A text to be written, or an event to be emitted.
pub(crate) struct Job {
    pub(crate) text: String,
    pub(crate) out: Out,
}

pub(crate) enum Out {
    /// Passes the text to the subscriber, as an event.
    Subscriber(fn(&str)),
    Stderr,
    File(Arc<LogFile>),
}

/// A file that is opened before the first line, by the thread that writes it.
pub(crate) struct LogFile {
    open: Box<dyn Fn() -> Option<File> + Send + Sync>,
    /// Set once, by the queue's thread. A forked child's thread uses the parent's file, or opens
    /// its own.
    file: OnceBox<Option<File>>,
}

impl Job {
    /// Bytes that it takes in the queue.
    pub(crate) fn bytes(&self) -> usize {
        self.text.len() + OVERHEAD
    }

    /// Writes or emits the text, however long that takes. Returns whether the text was taken.
    pub(crate) fn run(&self) -> bool {
        self.out.take(&self.text)
    }

    /// Reports in the same place that jobs before this one were lost.
    pub(crate) fn confess(&self, lost: u64) {
        let text = format!("{lost} log lines are lost: they could not be written");
        match &self.out {
            Out::Subscriber(_) => tracing::warn!("{text}"),
            // If it cannot be written, the line after it cannot, either, and is counted.
            out => drop(out.take(&format!("spark-ccl: {text}\n"))),
        }
    }
}

impl Out {
    fn take(&self, text: &str) -> bool {
        match self {
            Self::Subscriber(emit) => {
                emit(text);
                true
            }
            Self::Stderr => write_to_stderr(text),
            Self::File(file) => file.write(text),
        }
    }
}

impl LogFile {
    pub(crate) fn new(open: impl Fn() -> Option<File> + Send + Sync + 'static) -> Self {
        Self {
            open: Box::new(open),
            file: OnceBox::new(),
        }
    }

    fn write(&self, text: &str) -> bool {
        match self.file.get_or_init(|| Box::new((self.open)())) {
            Some(file) => write_all(file.as_fd(), text),
            None => write_to_stderr(text),
        }
    }
}

/// Bypasses `std::io::stderr`: the program may need its lock, and a forked child would inherit it.
fn write_to_stderr(text: &str) -> bool {
    // SAFETY: a program has its standard error open while it runs. If it closes it, the write
    // fails, or goes where every other print to standard error goes; the descriptor is only used
    // within this call.
    let stderr = unsafe { BorrowedFd::borrow_raw(libc::STDERR_FILENO) };
    write_all(stderr, text)
}

/// Waits for as long as it takes. Returns whether everything is written.
fn write_all(to: BorrowedFd<'_>, text: &str) -> bool {
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        match rustix::io::write(to, rest) {
            Ok(written) => rest = &rest[written..],
            Err(Errno::INTR) => {}
            // The pipe is full, and its descriptor does not block.
            Err(Errno::AGAIN) => {
                let mut writable = [PollFd::from_borrowed_fd(to, PollFlags::OUT)];
                if poll(&mut writable, None).is_err_and(|error| error != Errno::INTR) {
                    return false;
                }
            }
            Err(_) => return false,
        }
    }
    true
}
