//! Which ranks share a host, from one rank's view.

use std::collections::BTreeMap;

use crate::rounds::{after, before};
use crate::step::Rank;

/// The position of a rank among the ranks of its host, and of its host among the hosts.
///
/// The ranks of a host need not be consecutive, and hosts may differ in size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hosts {
    rank: Rank,
    ranks: u32,
    /// The ring of the ranks of this host.
    pub(crate) inside: RingPosition,
    /// The ring of the ranks with the same position on all hosts. If a host lacks the position, the
    /// neighbours are meaningless.
    pub(crate) across: RingPosition,
    /// Whether the host before this one in that ring has one rank only.
    pub(crate) prev_is_alone: bool,
    /// The positions that every host has: the number of ranks of the smallest host.
    pub(crate) columns: u32,
}

/// The position of one rank in a ring of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RingPosition {
    /// The index of this rank.
    pub(crate) index: u32,
    pub(crate) size: u32,
    pub(crate) next: Rank,
    pub(crate) prev: Rank,
}

impl Hosts {
    /// The view of each rank, where rank `r` is on the host named `host_of[r]`.
    pub fn of_all<H: Ord>(host_of: &[H]) -> Vec<Self> {
        let mut by_name = BTreeMap::<&H, Vec<Rank>>::new();
        for (rank, host) in (0..).zip(host_of) {
            by_name.entry(host).or_default().push(rank);
        }
        let mut hosts: Vec<_> = by_name.into_values().collect();
        // Ordered by their first ranks, so that names do not matter.
        hosts.sort_unstable();
        let columns = hosts.iter().map(Vec::len).min().unwrap_or(0) as u32;
        let mut all: Vec<_> = (0..)
            .zip(host_of)
            .map(|(rank, _)| Self::one(rank, host_of.len() as u32))
            .collect();
        for (row, host) in (0..).zip(&hosts) {
            for (place, rank) in (0..).zip(host) {
                let inside = |place: u32| host[place as usize];
                let across = |row: u32| {
                    let there = hosts[row as usize].get(place as usize);
                    there.copied().unwrap_or(*rank)
                };
                all[*rank as usize] = Self {
                    inside: RingPosition::new(place, host.len() as u32, inside),
                    across: RingPosition::new(row, hosts.len() as u32, across),
                    prev_is_alone: hosts[before(row, 1, hosts.len() as u32) as usize].len() == 1,
                    columns,
                    ..all[*rank as usize]
                };
            }
        }
        all
    }

    /// The view of rank `rank` of `ranks` if all are on one host.
    pub(crate) fn one(rank: Rank, ranks: u32) -> Self {
        Self {
            rank,
            ranks,
            inside: RingPosition::new(rank, ranks, |place| place),
            across: RingPosition::new(0, 1, |_| rank),
            prev_is_alone: ranks == 1,
            columns: ranks,
        }
    }

    /// Whether this is the view of rank `rank` of `ranks`.
    pub(crate) fn is_of(&self, rank: Rank, ranks: u32) -> bool {
        (self.rank, self.ranks) == (rank, ranks)
    }
}

impl RingPosition {
    fn new(index: u32, size: u32, rank_at: impl Fn(u32) -> Rank) -> Self {
        Self {
            index,
            size,
            next: rank_at(after(index, 1, size)),
            prev: rank_at(before(index, 1, size)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_order_of_ranks_do_not_matter() {
        let all = Hosts::of_all(&["b", "a", "b", "a", "a"]);
        assert!((0..).zip(&all).all(|(rank, hosts)| hosts.is_of(rank, 5)));
        assert!(all.iter().all(|hosts| hosts.columns == 2));
        let position = |index, size, next, prev| RingPosition {
            index,
            size,
            next,
            prev,
        };
        // Rank 0 is on the first host, with rank 2; ranks 1, 3 and 4 are on the second.
        assert_eq!(all[2].inside, position(1, 2, 0, 0));
        assert_eq!(all[2].across, position(0, 2, 3, 3));
        assert_eq!(all[3].inside, position(1, 3, 4, 1));
        assert_eq!(all[3].across, position(1, 2, 2, 2));
        assert_eq!(all[4].inside, position(2, 3, 1, 3));
        assert!(all.iter().all(|hosts| !hosts.prev_is_alone));
        let uneven = Hosts::of_all(&["a", "b", "a"]);
        let after_one: Vec<_> = uneven.iter().map(|hosts| hosts.prev_is_alone).collect();
        assert_eq!(after_one, [true, false, true]);
    }

    #[test]
    fn one_name_gives_one_host() {
        for ranks in 1..5 {
            let one: Vec<_> = (0..ranks).map(|rank| Hosts::one(rank, ranks)).collect();
            assert_eq!(Hosts::of_all(&vec![7; ranks as usize]), one);
        }
    }
}
