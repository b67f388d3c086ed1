//! The values of the elements in checked memory.

use std::fmt::Debug;

use crate::step::Rank;

/// The value of an element.
pub trait Value: Copy + PartialEq + Debug {
    /// Input element `index` of `rank`.
    fn input(rank: Rank, index: u64) -> Self;

    /// The reduction of two values, where `left` is that of the lower rank. `None` if they have a
    /// contribution in common.
    fn reduce(left: Self, right: Self) -> Option<Self>;

    /// Whether this is the reduction of input element `index` of the ranks `0..size`.
    fn is_total(self, size: u32, index: u64) -> bool;
}

/// The ranks that contributed, and the order in which they were reduced. For at most 64 ranks; with
/// more, no value is ever a total.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contributions {
    /// One bit per rank.
    ranks: u64,
    /// A hash of the tree of reductions: equal if a floating-point result would have equal bits.
    order: u64,
}

impl Value for Contributions {
    fn input(rank: Rank, index: u64) -> Self {
        Self {
            ranks: 1_u64.checked_shl(rank).unwrap_or(0),
            order: mix(u64::from(rank) + 1, index),
        }
    }

    fn reduce(left: Self, right: Self) -> Option<Self> {
        (left.ranks & right.ranks == 0).then(|| Self {
            ranks: left.ranks | right.ranks,
            order: mix(left.order, right.order),
        })
    }

    fn is_total(self, size: u32, _: u64) -> bool {
        (1..=64).contains(&size) && self.ranks == u64::MAX >> (64 - size)
    }
}

/// Numbers that are added up, for any number of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sums(u64);

impl Value for Sums {
    fn input(rank: Rank, index: u64) -> Self {
        Self(mix(u64::from(rank) + 1, index))
    }

    fn reduce(left: Self, right: Self) -> Option<Self> {
        Some(Self(left.0.wrapping_add(right.0)))
    }

    fn is_total(self, size: u32, index: u64) -> bool {
        let inputs = (0..size).map(|rank| Self::input(rank, index).0);
        self.0 == inputs.fold(0, u64::wrapping_add)
    }
}

/// Maps different pairs, also swapped ones, to different numbers, except for rare collisions.
fn mix(a: u64, b: u64) -> u64 {
    let mut hash = a.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ b;
    hash = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    hash = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    hash ^ (hash >> 32)
}
