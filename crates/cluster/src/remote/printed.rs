//! The output of a program, read as it comes.

use std::io::Read;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use serde::de::IgnoredAny;

/// The most bytes that are kept.
const MOST: u64 = 64 << 20;

/// Bytes that arrive by a pipe. A thread reads them until their end, or until none are wanted.
pub(super) struct Printed(Receiver<Vec<u8>>);

impl Printed {
    pub(super) fn of(pipe: Option<impl Read + Send + 'static>) -> Self {
        let (sender, receiver) = channel();
        if let Some(pipe) = pipe {
            std::thread::spawn(move || pass_on(pipe.take(MOST), &sender));
        }
        Self(receiver)
    }

    /// All output that has come by the deadline.
    pub(super) fn until(self, deadline: Instant) -> Vec<u8> {
        let mut all = Vec::new();
        let left = || deadline.saturating_duration_since(Instant::now());
        while let Ok(part) = self.0.recv_timeout(left()) {
            all.extend(part);
        }
        all
    }
}

/// The first JSON among the lines of a program, from a line's begin: shells may print lines before
/// and after it.
pub(super) fn json(text: &[u8]) -> Option<&[u8]> {
    let mut rest = text;
    while !rest.is_empty() {
        if rest.starts_with(b"{") || rest.starts_with(b"[") {
            let mut values = serde_json::Deserializer::from_slice(rest).into_iter::<IgnoredAny>();
            if let Some(Ok(_)) = values.next() {
                return Some(&rest[..values.byte_offset()]);
            }
        }
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        rest = &rest[end + 1..];
    }
    None
}

/// Output before an error is kept; the status of the program tells the rest.
fn pass_on(mut pipe: impl Read, parts: &Sender<Vec<u8>>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = pipe.read(&mut buffer) {
        if parts.send(buffer[..count].to_vec()).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_found_among_what_shells_print() {
        for (text, expected) in [
            ("{\"a\": [1]}", Some("{\"a\": [1]}")),
            ("[1,\n 2]\nlogout\n", Some("[1,\n 2]")),
            ("Welcome!\n[motd] hello\n{quota}\n{\n}\n", Some("{\n}")),
            ("[1,", None),
            ("a {}", None),
            ("", None),
        ] {
            assert_eq!(json(text.as_bytes()), expected.map(str::as_bytes), "{text}");
        }
    }
}
