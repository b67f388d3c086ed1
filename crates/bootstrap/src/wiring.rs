//! Which ranks reach each other by themselves, and ways through others where some do not. Pure
//! functions.

use std::collections::VecDeque;
use std::time::Duration;

use crate::hello::millis;
use crate::init_result::MAX_REPORT;
use crate::wire::{Reader, WireError, Writer};

/// The largest world that finds ways through others: up to this size, every rank dials every other.
/// In larger worlds, every rank must reach the ones that it needs by itself.
pub(crate) const MOST_RANKS: u32 = 8;

/// The bytes of a survey besides those about missed ranks.
const FIXED: usize = 64;

/// The outcome of a rank's dials to the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Survey {
    /// The ranks that it reached, a bit each.
    pub(crate) reached: u8,
    /// The ranks that it did not reach, in ascending order, with the reasons.
    pub(crate) missed: Vec<(u32, String)>,
    /// How long it will wait for the others' surveys.
    pub(crate) time_left: Duration,
}

impl Survey {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let room = (MAX_REPORT - FIXED) / self.missed.len().max(1) - 8;
        let mut to = Writer::default();
        to.u64(millis(self.time_left)).u8(self.reached);
        to.u8(self.missed.len() as u8);
        for (rank, why) in &self.missed {
            to.u32(*rank).text(why, room);
        }
        to.finish()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut from = Reader::new(bytes);
        let time_left = Duration::from_millis(from.u64()?);
        let reached = from.u8()?;
        let count = from.u8()?;
        let missed = (0..count).map(|_| {
            let rank = from.u32()?;
            let is_possible = rank < MOST_RANKS;
            let rank = is_possible
                .then_some(rank)
                .ok_or(WireError::Field("rank"))?;
            Ok((rank, from.text(MAX_REPORT)?))
        });
        let missed = missed.collect::<Result<_, WireError>>()?;
        from.end()?;
        Ok(Survey {
            reached,
            missed,
            time_left,
        })
    }
}

/// Which ranks of a world reach each other by themselves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wiring {
    /// By rank, the ranks that it reaches, a bit each. Empty if all reach each other.
    reached: Vec<u8>,
}

impl Wiring {
    /// Combines the surveys: each rank dialled those below it.
    pub(crate) fn of(surveys: &[&Survey]) -> Self {
        if surveys.iter().all(|survey| survey.missed.is_empty()) {
            return Self::default();
        }
        let mut reached: Vec<u8> = (0..surveys.len()).map(|rank| 1 << rank).collect();
        for (rank, survey) in surveys.iter().enumerate() {
            for peer in ranks(survey.reached) {
                if let Some(its) = reached.get_mut(peer as usize) {
                    *its |= 1 << rank;
                    reached[rank] |= 1 << peer;
                }
            }
        }
        Self { reached }
    }

    /// All ranks reach each other.
    pub(crate) const fn complete() -> Self {
        Self {
            reached: Vec::new(),
        }
    }

    /// Whether all ranks reach each other by themselves.
    pub fn is_complete(&self) -> bool {
        self.reached.is_empty()
    }

    /// Whether two ranks reach each other by themselves.
    pub fn joins(&self, a: u32, b: u32) -> bool {
        self.is_complete() || a == b || self.around(a) >> b & 1 == 1
    }

    fn around(&self, rank: u32) -> u8 {
        self.reached.get(rank as usize).copied().unwrap_or(0)
    }

    /// The ways from one rank to another that it does not reach by itself, shortest first: one for
    /// each possible first relay. Each way begins with that relay, and ends with the last one.
    pub(crate) fn ways(&self, from: u32, to: u32) -> Vec<Vec<u32>> {
        let first = ranks(self.around(from)).filter(|&first| first != from && first != to);
        let way = |first| self.way(first, to, &|rank| rank == from);
        let mut ways: Vec<Vec<u32>> = first.filter_map(way).collect();
        ways.sort_by_key(Vec::len);
        ways
    }

    /// The neighbour on the shortest way to a rank around the ranks that are `gone`.
    pub fn next_hop(&self, from: u32, to: u32, gone: &dyn Fn(u32) -> bool) -> Option<u32> {
        if self.joins(from, to) {
            return Some(to);
        }
        self.way(from, to, gone)?.get(1).copied()
    }

    /// The shortest way, with both of its ends.
    fn way(&self, from: u32, to: u32, closed: &dyn Fn(u32) -> bool) -> Option<Vec<u32>> {
        let mut before = vec![None; self.reached.len()];
        let mut queue = VecDeque::from([from]);
        while let Some(at) = queue.pop_front().filter(|&at| at != to) {
            for next in ranks(self.around(at)) {
                let known = &mut before[next as usize];
                if known.is_none() && next != from && !closed(next) {
                    *known = Some(at);
                    queue.push_back(next);
                }
            }
        }
        let mut way = vec![to];
        while let Some(&at) = way.last().filter(|&&at| at != from) {
            way.push((*before.get(at as usize)?)?);
        }
        way.reverse();
        Some(way)
    }

    /// The groups of ranks that no way joins; a single group unless something is cut.
    pub(crate) fn parts(&self) -> Vec<Vec<u32>> {
        let mut parts: Vec<Vec<u32>> = Vec::new();
        for rank in 0..self.reached.len() as u32 {
            let its = parts
                .iter_mut()
                .find(|part| self.way(part[0], rank, &|_| false).is_some());
            match its {
                Some(part) => part.push(rank),
                None => parts.push(vec![rank]),
            }
        }
        parts
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        for ranks in &self.reached {
            to.u8(*ranks);
        }
        to.finish()
    }

    /// Reads the wiring of a world of `size` ranks.
    pub(crate) fn decode(bytes: &[u8], size: usize) -> Result<Self, WireError> {
        let mut from = Reader::new(bytes);
        let rows = if bytes.is_empty() { 0 } else { size };
        if rows > MOST_RANKS as usize {
            return Err(WireError::Field("number of ranks"));
        }
        let reached = (0..rows).map(|_| from.u8());
        let reached: Vec<u8> = reached.collect::<Result<_, _>>()?;
        from.end()?;
        let beyond = |row: &u8| ranks(*row).any(|rank| rank as usize >= size);
        if reached.iter().any(beyond) {
            return Err(WireError::Field("rank"));
        }
        Ok(Self { reached })
    }
}

/// The ranks whose bits are set.
fn ranks(mask: u8) -> impl Iterator<Item = u32> {
    (0..MOST_RANKS).filter(move |rank| mask >> rank & 1 == 1)
}

#[cfg(test)]
mod tests;
