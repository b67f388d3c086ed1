//! The root exchanges with the other ranks in turn, in rounds of a chunk for each.

use spark_ccl_types::Operation;

use crate::rounds::{Rounds, after};
use crate::shape::Shape;
use crate::step::{Rank, Span, Step};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Linear {
    gather: bool,
    rank: Rank,
    root: Rank,
    size: u32,
    count: u64,
    rounds: Rounds,
}

impl Linear {
    /// `operation` is `Gather` or `Scatter`; returns `None` for others.
    pub(crate) fn new(operation: Operation, in_place: bool, shape: &Shape) -> Option<Self> {
        let gather = match operation {
            Operation::Gather => true,
            Operation::Scatter => false,
            _ => return None,
        };
        let steps = if shape.rank == shape.root {
            u64::from(shape.size) - u64::from(in_place)
        } else {
            1
        };
        Some(Self {
            gather,
            rank: shape.rank,
            root: shape.root,
            size: shape.size,
            count: shape.count,
            rounds: Rounds {
                total: shape.count,
                piece: shape.chunk,
                steps,
            },
        })
    }

    pub(crate) fn step(&self, index: u64) -> Option<Step> {
        let (round, place) = self.rounds.locate(index)?;
        let short = round.offset;
        let is_root = self.rank == self.root;
        // The root's own block comes last, so that it is copied while the others are busy.
        let peer = after(self.root, place as u32 + 1, self.size);
        let long = u64::from(peer) * self.count + short;
        let len = round.len;
        Some(match (self.gather, is_root) {
            (true, false) => Step::send(self.rank, self.root, Span::input(short, len)),
            (false, false) => Step::recv(self.rank, self.root, Span::output(short, len)),
            (true, true) if peer == self.root => {
                Step::copy(self.rank, Span::input(short, len), Span::output(long, len))
            }
            (false, true) if peer == self.root => {
                Step::copy(self.rank, Span::input(long, len), Span::output(short, len))
            }
            (true, true) => Step::recv(self.rank, peer, Span::output(long, len)),
            (false, true) => Step::send(self.rank, peer, Span::input(long, len)),
        })
    }
}
