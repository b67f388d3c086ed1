//! Finds pairs of memory accesses that no chain of messages puts in order.
//!
//! The order that messages give does not depend on the order in which ranks happen to run, so one
//! run finds the races of all.

mod clocks;
mod open;
#[cfg(test)]
mod tests;

use std::ops::Range;

use crate::fault::Fault;
use crate::lockstep::Place;
use crate::step::Rank;
pub(super) use clocks::Clock;
use clocks::Clocks;
use open::{Access, Open};

pub(super) struct Order {
    clocks: Clocks,
    /// Per owner of the memory.
    memories: Vec<Memory>,
}

#[derive(Default)]
struct Memory {
    open: Open,
    /// How many there were.
    accesses: u32,
    /// The first of those found so far.
    race: Option<Race>,
}

/// Races compare by where they are in memory, then by when they were.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Race {
    access: (usize, u32),
    /// `None` is what the owner does before it begins and after it ends.
    other: Option<(usize, u32)>,
    ranks: [Rank; 2],
}

impl Order {
    pub(super) fn new(size: usize, channels: u32) -> Self {
        Self {
            clocks: Clocks::new(size, channels),
            memories: (0..size).map(|_| Memory::default()).collect(),
        }
    }

    /// What a message carries. What the sender does from now on is not covered by it.
    pub(super) fn send(&mut self, at: Place) -> Clock {
        self.clocks.send(at)
    }

    /// What the receiver does from now on comes after all that `carried` covers.
    pub(super) fn receive(&mut self, at: Place, carried: &Clock) {
        self.clocks.receive(at, carried);
    }

    pub(super) fn access(&mut self, at: Place, owner: Rank, range: Range<usize>, is_write: bool) {
        self.note(at, owner, range, is_write, false);
    }

    /// Reads what the owner has lent, and waits for before it ends.
    pub(super) fn borrow(&mut self, at: Place, owner: Rank, range: Range<usize>) {
        self.note(at, owner, range, false, true);
    }

    /// Looks for races with earlier accesses, and with what the owner did before it began.
    fn note(
        &mut self,
        at: Place,
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
        if !is_awaited && !clocks.has_heard_of(at, owner) {
            keep_first(&mut memory.race, Race::with_owner(&access, owner));
        }
        let is_before = clocks.is_before(at);
        memory.open.add(access, range, is_before, |earlier| {
            keep_first(&mut memory.race, Race::between(earlier, &access));
        });
    }

    /// Looks for races with what owners do after they have ended as well.
    pub(super) fn finish(&self) -> Result<(), Fault> {
        for (owner, memory) in (0..).zip(&self.memories) {
            let mut race = memory.race;
            for access in memory.open.iter() {
                if !access.is_awaited && !self.clocks.is_known_to(owner, access.by) {
                    keep_first(&mut race, Race::with_owner(access, owner));
                }
            }
            if let Some(Race { ranks, .. }) = race {
                return Err(Fault::Race { owner, ranks });
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
