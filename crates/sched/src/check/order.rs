//! Finds pairs of memory accesses that no chain of messages puts in order, by vector clocks.
//!
//! The order that messages give does not depend on the order in which ranks happen to run, so one
//! run finds the races of all.

use std::ops::Range;
use std::rc::Rc;

use crate::fault::Fault;
use crate::lockstep::Place;
use crate::step::Rank;

/// One counter per rank and channel.
pub(super) type Clock = Rc<[u32]>;

pub(super) struct Order {
    channels: u32,
    clocks: Vec<Clock>,
    /// Per owner of the memory.
    accesses: Vec<Vec<Access>>,
}

struct Access {
    by: usize,
    clock: Clock,
    range: Range<usize>,
    is_write: bool,
    /// The owner waits for it before it ends.
    is_awaited: bool,
}

impl Order {
    pub(super) fn new(size: usize, channels: u32) -> Self {
        let processes = size * channels as usize;
        let clock = |process: usize| {
            let mut clock = vec![0; processes];
            clock[process] = 1;
            Clock::from(clock)
        };
        Self {
            channels,
            clocks: (0..processes).map(clock).collect(),
            accesses: (0..size).map(|_| Vec::new()).collect(),
        }
    }

    /// What a message carries. What the sender does from now on is not covered by it.
    pub(super) fn send(&mut self, at: Place) -> Clock {
        let process = self.process(at);
        let carried = Rc::clone(&self.clocks[process]);
        let mut clock = carried.to_vec();
        clock[process] += 1;
        self.clocks[process] = clock.into();
        carried
    }

    /// What the receiver does from now on comes after all that `carried` covers.
    pub(super) fn receive(&mut self, at: Place, carried: &Clock) {
        let process = self.process(at);
        let clock = self.clocks[process].iter().zip(carried.iter());
        self.clocks[process] = clock.map(|(own, other)| *own.max(other)).collect();
    }

    pub(super) fn access(&mut self, at: Place, owner: Rank, range: Range<usize>, is_write: bool) {
        self.note(at, owner, range, is_write, false);
    }

    /// Reads what the owner has lent, and waits for before it ends.
    pub(super) fn borrow(&mut self, at: Place, owner: Rank, range: Range<usize>) {
        self.note(at, owner, range, false, true);
    }

    fn note(
        &mut self,
        at: Place,
        owner: Rank,
        range: Range<usize>,
        is_write: bool,
        is_awaited: bool,
    ) {
        let by = self.process(at);
        self.accesses[owner as usize].push(Access {
            by,
            clock: Rc::clone(&self.clocks[by]),
            range,
            is_write,
            is_awaited,
        });
    }

    /// Looks at all pairs of accesses, and at each rank's own use of its memory before it began
    /// and after it ended.
    pub(super) fn finish(&self) -> Result<(), Fault> {
        for (owner, accesses) in self.accesses.iter().enumerate() {
            let race = |access: &Access, other: usize| Fault::Race {
                owner: owner as Rank,
                ranks: [self.rank(access.by) as Rank, other as Rank],
            };
            let mut in_place: Vec<&Access> = accesses.iter().collect();
            in_place.sort_by_key(|access| access.range.start);
            for (index, access) in in_place.iter().enumerate() {
                let is_foreign = self.rank(access.by) != owner && !access.is_awaited;
                if is_foreign && !self.is_within(access, owner) {
                    return Err(race(access, owner));
                }
                let overlapping = in_place[index + 1..]
                    .iter()
                    .take_while(|other| other.range.start < access.range.end);
                let mut unordered = overlapping.filter(|other| {
                    (access.is_write || other.is_write)
                        && !access.is_before(other)
                        && !other.is_before(access)
                });
                if let Some(other) = unordered.next() {
                    return Err(race(access, self.rank(other.by)));
                }
            }
        }
        Ok(())
    }

    /// Whether an access lies between the beginning and the end of what `owner` does.
    fn is_within(&self, access: &Access, owner: usize) -> bool {
        let first = owner * self.channels as usize;
        let mut processes = first..first + self.channels as usize;
        let begun = processes.clone().any(|process| access.clock[process] > 0);
        let ended = |process: usize| self.clocks[process][access.by] >= access.clock[access.by];
        begun && processes.any(ended)
    }

    fn process(&self, at: Place) -> usize {
        (at.rank * self.channels + at.channel) as usize
    }

    fn rank(&self, process: usize) -> usize {
        process / self.channels as usize
    }
}

impl Access {
    fn is_before(&self, other: &Self) -> bool {
        other.clock[self.by] >= self.clock[self.by]
    }
}
