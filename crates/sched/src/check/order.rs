//! Finds pairs of memory accesses that no chain of messages orders.
//!
//! The order that messages impose does not depend on the order in which ranks happen to run, so one
//! run finds the races of all runs.

mod clocks;
mod open;
#[cfg(test)]
mod tests;

use std::ops::Range;

pub(super) use clocks::Clock;
use clocks::Clocks;
use open::{Access, Open};

use crate::defect::Defect;
use crate::lockstep::ProcessId;
use crate::step::Rank;

pub(super) struct Order {
    clocks: Clocks,
    /// Indexed by the owner of the memory.
    memories: Vec<RankMemory>,
}

#[derive(Default)]
struct RankMemory {
    open: Open,
    /// The number of accesses so far.
    accesses: u32,
    /// The first race found so far.
    race: Option<Race>,
}

/// Races are ordered by their position in memory, then by the order of the accesses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Race {
    access: (usize, u32),
    /// `None` for the owner's uses before the collective begins and after it ends.
    other: Option<(usize, u32)>,
    ranks: [Rank; 2],
}

impl Order {
    pub(super) fn new(size: usize, channels: u32) -> Self {
        Self {
            clocks: Clocks::new(size, channels),
            memories: (0..size).map(|_| RankMemory::default()).collect(),
        }
    }

    /// The clock that a message carries. It does not cover what the sender does later.
    pub(super) fn send(&mut self, at: ProcessId) -> Clock {
        self.clocks.send(at)
    }

    /// Orders all later actions of the receiver after the actions that `carried` covers.
    pub(super) fn receive(&mut self, at: ProcessId, carried: &Clock) {
        self.clocks.receive(at, carried);
    }

    pub(super) fn access(
        &mut self,
        at: ProcessId,
        owner: Rank,
        range: Range<usize>,
        is_write: bool,
    ) {
        self.record(at, owner, range, is_write, false);
    }

    /// A read by a receiver in the sender's memory. The owner waits for it before it ends.
    pub(super) fn borrow(&mut self, at: ProcessId, owner: Rank, range: Range<usize>) {
        self.record(at, owner, range, false, true);
    }

    /// Finds races with earlier accesses, and with the owner's uses before it began.
    fn record(
        &mut self,
        at: ProcessId,
        owner: Rank,
        range: Range<usize>,
        is_write: bool,
        is_awaited: bool,
    ) {
        let Self { clocks, memories } = self;
        let memory = &mut memories[owner as usize];
        let access = Access {
            by: clocks.now(at),
            start: range.start,
            index: memory.accesses,
            is_write,
            is_awaited,
        };
        memory.accesses += 1;
        if !is_awaited && !clocks.is_after_some_event_of(at, owner) {
            keep_first(&mut memory.race, Race::with_owner(&access, owner));
        }
        let is_before = clocks.is_before(at);
        memory.open.add(access, range, is_before, |earlier| {
            keep_first(&mut memory.race, Race::between(earlier, &access));
        });
    }

    /// Finds races with the owners' uses after they have ended, and reports the first race.
    pub(super) fn finish(&self) -> Result<(), Defect> {
        for (owner, memory) in (0..).zip(&self.memories) {
            let mut race = memory.race;
            for access in memory.open.iter() {
                if !access.is_awaited && !self.clocks.is_known_to(owner, access.by) {
                    keep_first(&mut race, Race::with_owner(access, owner));
                }
            }
            if let Some(Race { ranks, .. }) = race {
                return Err(Defect::Race { owner, ranks });
            }
        }
        Ok(())
    }
}

fn keep_first(first: &mut Option<Race>, race: Race) {
    if first.is_none_or(|first| race < first) {
        *first = Some(race);
    }
}

impl Race {
    fn between(earlier: &Access, later: &Access) -> Self {
        let [first, second] = if earlier.place() <= later.place() {
            [earlier, later]
        } else {
            [later, earlier]
        };
        Self {
            access: first.place(),
            other: Some(second.place()),
            ranks: [first.by.at.rank, second.by.at.rank],
        }
    }

    fn with_owner(access: &Access, owner: Rank) -> Self {
        Self {
            access: access.place(),
            other: None,
            ranks: [access.by.at.rank, owner],
        }
    }
}
