//! Divides vectors into rounds and blocks, and ranks into neighbours on a ring. Knows numbers
//! only; knows neither operations nor memory.

use crate::step::Rank;

/// The elements of a cache line, for the common types. Blocks start at multiples of it if possible.
const ALIGN: u64 = 16;

/// A range of elements, in an unspecified buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// A vector that is processed in rounds, each with the same number of steps. The last round may be
/// shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rounds {
    /// The elements of the vector.
    pub(crate) total: u64,
    /// The elements of a round, at least 1.
    pub(crate) piece: u64,
    /// The steps of a round, at least 1.
    pub(crate) steps: u64,
}

impl Rounds {
    /// The round of step `index`, and the step's index within it.
    pub(crate) fn locate(&self, index: u64) -> Option<(Piece, u64)> {
        // Avoids the divisions for small operations, which have one round.
        let (round, place) = if index < self.steps {
            (0, index)
        } else {
            (index / self.steps, index % self.steps)
        };
        Some((self.round(round)?, place))
    }

    /// The elements of round `round`.
    pub(crate) fn round(&self, round: u64) -> Option<Piece> {
        let offset = round.saturating_mul(self.piece);
        (offset < self.total).then(|| Piece {
            offset,
            len: self.piece.min(self.total - offset),
        })
    }
}

/// A vector that is divided into one block per rank, of nearly equal lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Split {
    total: u64,
    unit: u64,
    quotient: u64,
    remainder: u64,
}

impl Split {
    /// Divides `total` elements into `parts` blocks of at most `limit`, where `total` must be at
    /// most `parts * limit`. Blocks start at multiples of [`ALIGN`] if that makes the longest block
    /// longer by at most an eighth.
    pub(crate) fn new(total: u64, parts: u32, limit: u64) -> Self {
        let parts = u64::from(parts);
        let aligned = Self::of_units(total, parts, ALIGN);
        if total / parts >= 8 * ALIGN && aligned.longest() <= limit {
            aligned
        } else {
            Self::of_units(total, parts, 1)
        }
    }

    fn of_units(total: u64, parts: u64, unit: u64) -> Self {
        let units = total.div_ceil(unit);
        Self {
            total,
            unit,
            quotient: units / parts,
            remainder: units % parts,
        }
    }

    /// Block `index`.
    pub(crate) fn block(&self, index: Rank) -> Piece {
        self.run(index, index + 1)
    }

    /// Blocks `first..end`.
    pub(crate) fn run(&self, first: u32, end: u32) -> Piece {
        let offset = self.start(u64::from(first));
        Piece {
            offset,
            len: self.start(u64::from(end)) - offset,
        }
    }

    /// The length of the longest block, or slightly more.
    pub(crate) fn longest(&self) -> u64 {
        (self.quotient + u64::from(self.remainder > 0)) * self.unit
    }

    fn start(&self, index: u64) -> u64 {
        let units = index * self.quotient + index.min(self.remainder);
        (units * self.unit).min(self.total)
    }
}

/// The rank `by` positions after `rank`, where `by` is at most `size`.
pub(crate) const fn after(rank: Rank, by: u32, size: u32) -> Rank {
    // `rank + by` may overflow; `size - by` does not.
    let gap = size - by;
    if rank >= gap { rank - gap } else { rank + by }
}

/// The rank `by` positions before `rank`, where `by` is at most `size`.
pub(crate) const fn before(rank: Rank, by: u32, size: u32) -> Rank {
    if rank >= by {
        rank - by
    } else {
        rank + (size - by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_cover_everything_once_and_keep_the_limit() {
        for parts in 1..20 {
            for total in (0..400_u64).chain([4096, 10_007, 1 << 20]) {
                let limit = total.div_ceil(u64::from(parts)).max(1);
                for limit in [limit, limit.next_multiple_of(ALIGN)] {
                    let split = Split::new(total, parts, limit);
                    let mut end = 0;
                    for block in (0..parts).map(|index| split.block(index)) {
                        assert_eq!(block.offset, end);
                        assert!(block.len <= split.longest() && split.longest() <= limit);
                        end += block.len;
                    }
                    assert_eq!(end, total);
                }
            }
        }
    }

    #[test]
    fn large_splits_are_aligned() {
        let split = Split::new(1_000_003, 7, u64::MAX);
        assert!((0..7).all(|index| split.block(index).offset.is_multiple_of(ALIGN)));
    }

    #[test]
    fn walking_around_the_ring() {
        assert_eq!(after(3, 2, 5), 0);
        assert_eq!(after(3, 5, 5), 3);
        assert_eq!(before(1, 2, 5), 4);
        assert_eq!(before(1, 5, 5), 1);
        assert_eq!(after(u32::MAX - 1, 1, u32::MAX), 0);
    }
}
