//! The state that the two ends of one direction share.

use std::collections::VecDeque;

/// One direction of a link.
#[derive(Debug, Default)]
pub(super) struct Direction {
    /// Messages in flight, with their arrival times, which never decrease.
    pub(super) in_flight: VecDeque<(u64, FakeMessage)>,
    /// When the sender finds out about each freed slot, in order of release; never decreasing.
    pub(super) freed: VecDeque<u64>,
    /// When the receiver finds out that the sender has closed.
    pub(super) sender_closed: Option<u64>,
    /// When the sender finds out that the receiver has closed.
    pub(super) receiver_closed: Option<u64>,
}

#[derive(Debug)]
pub(super) struct FakeMessage {
    pub(super) tag: u64,
    pub(super) payload: Vec<u8>,
}

impl Direction {
    /// Sends a message that arrives at `due`, but not before the previous one.
    pub(super) fn send(&mut self, due: u64, message: FakeMessage) {
        let due = due.max(self.in_flight.back().map_or(0, |last| last.0));
        self.in_flight.push_back((due, message));
    }

    /// The next message, if it has arrived by `now`.
    pub(super) fn arrived(&mut self, now: u64) -> Option<FakeMessage> {
        if self.in_flight.front()?.0 > now {
            return None;
        }
        self.in_flight.pop_front().map(|head| head.1)
    }

    /// Frees a slot. The sender finds out at `due`, but not before it finds out about the previous
    /// one.
    pub(super) fn free(&mut self, due: u64) {
        let due = due.max(self.freed.back().copied().unwrap_or(0));
        self.freed.push_back(due);
    }

    /// How many freed slots the sender has found out about since the last call.
    pub(super) fn take_freed(&mut self, now: u64) -> usize {
        let known = self.freed.iter().take_while(|&&due| due <= now).count();
        self.freed.drain(..known);
        known
    }
}
