//! What the two ends of a stream settle before there is a link.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use socket2::Socket;

use crate::net;

/// What the two ends of a stream have to say to each other.
pub trait Talk: Send {
    /// Over which they say it.
    fn stream(&self) -> &Socket;

    /// Does what can be done now, and waits for nothing.
    fn go_on(&mut self) -> Turn;
}

/// When a talk goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// It is over.
    Over,
    /// When there is something to read, or the stream ends.
    Reading,
    /// In a moment: the system has refused something that it will allow.
    Later,
}

/// How soon a talk goes on that the system has held up.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(2);

/// Talks that are not over.
#[derive(Default)]
pub(crate) struct Talks(Vec<(u64, Box<dyn Talk>, Turn)>);

impl Talks {
    pub(crate) fn begin(&mut self, context: u64, talk: Box<dyn Talk>) {
        self.0.push((context, talk, Turn::Later));
    }

    /// Goes on with all of which that is possible, and drops those of contexts that are over; whether anything was
    /// possible.
    pub(crate) fn go_on(&mut self, is_over: impl Fn(u64) -> bool) -> bool {
        let mut progressed = false;
        self.0.retain_mut(|(context, talk, turn)| {
            if is_over(*context) {
                return false;
            }
            if *turn == Turn::Later || is_readable(talk.stream()) {
                *turn = talk.go_on();
                progressed |= *turn != Turn::Later;
            }
            *turn != Turn::Over
        });
        progressed
    }

    /// Whether some are held up.
    pub(crate) fn any_to_retry(&self) -> bool {
        self.0.iter().any(|(_, _, turn)| *turn == Turn::Later)
    }

    /// Adds what wakes [`go_on`](Self::go_on).
    pub(crate) fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        let reading = self.0.iter().filter(|(_, _, turn)| *turn == Turn::Reading);
        fds.extend(reading.map(|(_, talk, _)| PollFd::new(talk.stream(), PollFlags::IN)));
    }
}

impl std::fmt::Debug for Talks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Talks").finish_non_exhaustive()
    }
}

/// Whether there is something to read, be it the end.
fn is_readable(stream: &Socket) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::IN)];
    net::poll(&mut fds, Some(Instant::now())).is_err() || !fds[0].revents().is_empty()
}
