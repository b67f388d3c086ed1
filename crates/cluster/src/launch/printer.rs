//! Prints the ranks' output on a separate thread, so that a slow reader, or none, delays nothing
//! else.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::wire::Stream;

/// How many lines may wait to be printed. Beyond that, ranks that print wait.
const BACKLOG: usize = 256;

/// A line of a rank.
pub(super) struct Line {
    pub(super) rank: usize,
    pub(super) stream: Stream,
    pub(super) text: Vec<u8>,
}

/// The printing thread, as others see it.
pub(super) struct Printer {
    /// Whether it has a line that the reader has not taken. Guards no other memory, so all accesses
    /// are relaxed.
    is_writing: Arc<AtomicBool>,
}

impl Printer {
    /// Starts the thread, which takes lines until all senders are gone. It reports an error at
    /// once, and finally that it is done.
    pub(super) fn start(
        prefix: bool,
        tell: impl Fn(Option<io::Error>) + Send + 'static,
    ) -> (Self, SyncSender<Line>) {
        let (sender, lines) = sync_channel(BACKLOG);
        let is_writing = Arc::new(AtomicBool::new(false));
        let writing = Arc::clone(&is_writing);
        std::thread::spawn(move || {
            if let Err(error) = print_all(&lines, prefix, &writing) {
                tell(Some(error));
                lines.into_iter().for_each(drop);
            }
            tell(None);
        });
        (Self { is_writing }, sender)
    }

    /// Whether it waits for the reader.
    pub(super) fn is_writing(&self) -> bool {
        self.is_writing.load(Ordering::Relaxed)
    }
}

fn print_all(lines: &Receiver<Line>, prefix: bool, is_writing: &AtomicBool) -> io::Result<()> {
    for line in lines {
        is_writing.store(true, Ordering::Relaxed);
        let printed = print(&line, prefix);
        is_writing.store(false, Ordering::Relaxed);
        printed?;
    }
    Ok(())
}

fn print(line: &Line, prefix: bool) -> io::Result<()> {
    let mut whole = Vec::with_capacity(line.text.len() + 8);
    if prefix {
        whole.extend(format!("[{}] ", line.rank).into_bytes());
    }
    whole.extend(&line.text);
    whole.push(b'\n');
    match line.stream {
        Stream::Output => {
            let mut out = io::stdout().lock();
            out.write_all(&whole).and_then(|()| out.flush())
        }
        Stream::Error => io::stderr().write_all(&whole),
    }
}
