//! Vector clocks: which events of other ranks are ordered before a rank's next one.

use std::rc::Rc;

use crate::lockstep::ProcessId;
use crate::step::Rank;

/// One clock per rank and channel, because messages stay within a channel.
pub(super) struct Clocks {
    size: usize,
    processes: Vec<Process>,
}

struct Process {
    /// The number of the next message, from 1.
    epoch: u32,
    known: Known,
}

/// The last known epoch of each rank. A message shares it with its sender until the sender receives
/// more: with thousands of ranks, copies would take most of the memory.
type Known = Rc<[u32]>;

/// The clock that a message carries.
pub(in crate::check) struct Clock {
    sent: Event,
    known: Known,
}

/// The period of a process between two messages that it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) at: ProcessId,
    epoch: u32,
}

impl Clocks {
    pub(super) fn new(size: usize, channels: u32) -> Self {
        let nothing = Known::from(vec![0; size]);
        let process = |_| Process {
            epoch: 1,
            known: Rc::clone(&nothing),
        };
        Self {
            size,
            processes: (0..size * channels as usize).map(process).collect(),
        }
    }

    pub(super) fn send(&mut self, at: ProcessId) -> Clock {
        let sent = self.now(at);
        let index = self.index(at);
        let process = &mut self.processes[index];
        process.epoch += 1;
        Clock {
            sent,
            known: Rc::clone(&process.known),
        }
    }

    pub(super) fn receive(&mut self, at: ProcessId, carried: &Clock) {
        debug_assert_eq!(at.channel, carried.sent.at.channel);
        let index = self.index(at);
        let known = Rc::make_mut(&mut self.processes[index].known);
        for (own, other) in known.iter_mut().zip(carried.known.iter()) {
            *own = (*own).max(*other);
        }
        let sender = &mut known[carried.sent.at.rank as usize];
        *sender = (*sender).max(carried.sent.epoch);
    }

    pub(super) fn now(&self, at: ProcessId) -> Event {
        let epoch = self.processes[self.index(at)].epoch;
        Event { at, epoch }
    }

    /// Returns whether an event comes before everything that `at` does from now on.
    pub(super) fn is_before(&self, at: ProcessId) -> impl Fn(Event) -> bool {
        let known = &self.processes[self.index(at)].known;
        move |event| {
            let is_known = || known[event.at.rank as usize] >= event.epoch;
            event.at == at || event.at.channel == at.channel && is_known()
        }
    }

    /// Whether `event` comes before everything that `rank` does from now on.
    pub(super) fn is_known_to(&self, rank: Rank, event: Event) -> bool {
        let channel = event.at.channel;
        event.at.rank == rank || self.is_before(ProcessId { rank, channel })(event)
    }

    /// Whether a message orders what `at` does after something that `rank` did.
    pub(super) fn is_after_some_event_of(&self, at: ProcessId, rank: Rank) -> bool {
        at.rank == rank || self.processes[self.index(at)].known[rank as usize] > 0
    }

    fn index(&self, at: ProcessId) -> usize {
        at.channel as usize * self.size + at.rank as usize
    }
}
