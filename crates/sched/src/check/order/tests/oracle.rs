//! Finds races by comparing all pairs of accesses, without clocks.

use std::collections::BTreeSet;

use super::{CHANNELS, Event, SIZE, Use};
use crate::lockstep::ProcessId;
use crate::step::Rank;

/// The accesses and the ranks that come before.
#[derive(Debug, Clone, Default)]
pub(super) struct Past {
    uses: BTreeSet<usize>,
    ranks: BTreeSet<Rank>,
}

#[derive(Default)]
pub(super) struct Oracle {
    pasts: Vec<Past>,
    in_flight: Vec<(ProcessId, Past)>,
    /// Each access, with what came before it.
    pub(super) uses: Vec<(Use, Past)>,
}

impl Oracle {
    pub(super) fn of(events: &[Event]) -> Self {
        let mut oracle = Self {
            pasts: vec![Past::default(); SIZE * CHANNELS as usize],
            ..Self::default()
        };
        for event in events {
            oracle.step(event);
        }
        oracle
    }

    fn step(&mut self, event: &Event) {
        match event {
            Event::Send { from, to } => {
                self.pasts[index(*from)].ranks.insert(from.rank);
                let to = ProcessId { rank: *to, ..*from };
                self.in_flight.push((to, self.pasts[index(*from)].clone()));
            }
            Event::Arrive(which) if !self.in_flight.is_empty() => {
                let (to, past) = self.in_flight.remove(which.index(self.in_flight.len()));
                let own = &mut self.pasts[index(to)];
                own.uses.extend(past.uses);
                own.ranks.extend(past.ranks);
            }
            Event::Arrive(_) => {}
            Event::Access(used) => {
                let past = &mut self.pasts[index(used.at)];
                self.uses.push((used.clone(), past.clone()));
                past.uses.insert(self.uses.len() - 1);
            }
        }
    }

    /// The earlier accesses that access `number` races with.
    pub(super) fn races(&self, number: usize) -> impl Iterator<Item = usize> {
        let (used, past) = &self.uses[number];
        (0..number)
            .filter(|earlier| self.uses[*earlier].0.conflicts(used) && !past.uses.contains(earlier))
    }

    /// Whether access `number` races with the owner's uses before it begins or after it ends.
    fn is_outside(&self, number: usize) -> bool {
        let (used, past) = &self.uses[number];
        let ends = |channel| {
            let owner = ProcessId {
                rank: used.owner,
                channel,
            };
            self.pasts[index(owner)].uses.contains(&number)
        };
        let is_inside = past.ranks.contains(&used.owner) && (0..CHANNELS).any(ends);
        used.at.rank != used.owner && !used.is_awaited && !is_inside
    }

    /// All races in memory of `owner`, in both orders.
    pub(super) fn ranks(&self, owner: Rank) -> BTreeSet<[Rank; 2]> {
        let mut ranks = BTreeSet::new();
        for (later, (used, _)) in self.uses.iter().enumerate() {
            if used.owner != owner {
                continue;
            }
            for earlier in self.races(later) {
                let pair = [self.uses[earlier].0.at.rank, used.at.rank];
                ranks.extend([pair, [pair[1], pair[0]]]);
            }
            if self.is_outside(later) {
                ranks.insert([used.at.rank, owner]);
            }
        }
        ranks
    }
}

fn index(at: ProcessId) -> usize {
    at.rank as usize * CHANNELS as usize + at.channel as usize
}
