//! What a program prints, read as it comes.

use std::io::Read;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

/// The most bytes that are kept.
const MOST: u64 = 64 << 20;

/// What arrives by a pipe. A thread reads it until its end, or until nobody wants it.
pub(super) struct Printed(Receiver<Vec<u8>>);

impl Printed {
    pub(super) fn of(pipe: Option<impl Read + Send + 'static>) -> Self {
        let (sender, receiver) = channel();
        if let Some(pipe) = pipe {
            std::thread::spawn(move || pass_on(pipe.take(MOST), &sender));
        }
        Self(receiver)
    }

    /// All of it, but for what has not come by then.
    pub(super) fn until(self, deadline: Instant) -> Vec<u8> {
        let mut all = Vec::new();
        let left = || deadline.saturating_duration_since(Instant::now());
        while let Ok(part) = self.0.recv_timeout(left()) {
            all.extend(part);
        }
        all
    }
}

/// What came before an error is kept; the status of the program tells the rest.
fn pass_on(mut pipe: impl Read, parts: &Sender<Vec<u8>>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = pipe.read(&mut buffer) {
        if parts.send(buffer[..count].to_vec()).is_err() {
            return;
        }
    }
}
