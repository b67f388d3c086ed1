//! A barrier: after signals at distance 1, 2, 4, ... every rank has, directly or indirectly,
//! received from every other.

use crate::rounds::{after, before};
use crate::shape::Shape;
use crate::step::{Rank, Step};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dissemination {
    rank: Rank,
    size: u32,
}

impl Dissemination {
    pub(crate) fn new(shape: &Shape) -> Self {
        Self {
            rank: shape.rank,
            size: shape.size,
        }
    }

    pub(crate) fn step(self, index: u64) -> Option<Step> {
        let phase = u32::try_from(index / 2).ok()?;
        let distance = 1_u32.checked_shl(phase).filter(|far| *far < self.size)?;
        Some(if index.is_multiple_of(2) {
            Step::signal(self.rank, after(self.rank, distance, self.size))
        } else {
            Step::wait(self.rank, before(self.rank, distance, self.size))
        })
    }
}
