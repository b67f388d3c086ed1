//! Negotiations between a stream's two ends before the link is ready.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use socket2::Socket;

use crate::net;

/// One end of the negotiation over a stream.
pub trait Negotiation: Send {
    /// The stream.
    fn stream(&self) -> &Socket;

    /// Advances as far as possible without blocking.
    fn go_on(&mut self) -> NegotiationTurn;
}

/// When to advance a negotiation next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NegotiationTurn {
    /// Never: it is over.
    Over,
    /// When the stream is readable, or has ended.
    Reading,
    /// After a short pause: the system has refused something that it will allow later.
    Later,
}

/// The pause before retrying a negotiation that the system holds up.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(2);

/// The negotiations that are not over.
#[derive(Default)]
pub(crate) struct Negotiations(Vec<Begun>);

struct Begun {
    peer: u32,
    context: u64,
    negotiation: Box<dyn Negotiation>,
    turn: NegotiationTurn,
}

impl Negotiations {
    pub(crate) fn begin(&mut self, peer: u32, context: u64, negotiation: Box<dyn Negotiation>) {
        self.0.push(Begun {
            peer,
            context,
            negotiation,
            turn: NegotiationTurn::Later,
        });
    }

    /// Advances all negotiations that can be, and drops those of ended contexts. Returns whether
    /// any has progressed.
    pub(crate) fn go_on(&mut self, is_over: impl Fn(u64) -> bool) -> bool {
        let mut progressed = false;
        self.0.retain_mut(|begun| {
            if is_over(begun.context) {
                return false;
            }
            if begun.turn == NegotiationTurn::Later || is_readable(begun.negotiation.stream()) {
                begun.turn = begun.negotiation.go_on();
                progressed |= begun.turn != NegotiationTurn::Later;
            }
            begun.turn != NegotiationTurn::Over
        });
        progressed
    }

    /// Whether any negotiation waits for its retry.
    pub(crate) fn any_to_retry(&self) -> bool {
        self.0
            .iter()
            .any(|begun| begun.turn == NegotiationTurn::Later)
    }

    /// The peer and context of each negotiation that waits for its stream to be readable.
    pub(crate) fn reading(&self) -> impl Iterator<Item = (u32, u64)> {
        self.to_read().map(|begun| (begun.peer, begun.context))
    }

    /// Adds the descriptors that wake [`go_on`](Self::go_on).
    pub(crate) fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        let streams = self.to_read().map(|begun| begun.negotiation.stream());
        fds.extend(streams.map(|stream| PollFd::new(stream, PollFlags::IN)));
    }

    fn to_read(&self) -> impl Iterator<Item = &Begun> {
        self.0
            .iter()
            .filter(|begun| begun.turn == NegotiationTurn::Reading)
    }
}

impl std::fmt::Debug for Negotiations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Negotiations").finish_non_exhaustive()
    }
}

/// Whether the stream is readable, or has ended.
fn is_readable(stream: &Socket) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::IN)];
    net::poll(&mut fds, Some(Instant::now())).is_err() || !fds[0].revents().is_empty()
}
