//! Each rank sends to every other, then receives from every other: the latency of one message, for
//! small data.

use spark_ccl_types::Operation;

use crate::rounds::{Piece, Rounds, after, before};
use crate::shape::Shape;
use crate::step::{Kind, Rank, Span, Step};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Direct {
    goal: Goal,
    rank: Rank,
    size: u32,
    count: u64,
    rounds: Rounds,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    AllReduce,
    AllGather { in_place: bool },
    AllToAll { in_place: bool },
    ReduceScatter,
}

impl Direct {
    /// `operation` is `AllReduce`, `AllGather`, `AllToAll` or `ReduceScatter`; returns `None` for
    /// others.
    pub(crate) fn new(operation: Operation, in_place: bool, shape: &Shape) -> Option<Self> {
        let exchange = 2 * (u64::from(shape.size) - 1);
        // Two ranks reduce what they receive; more ranks store it, and then reduce in rank order.
        let reduce = u64::from(shape.size > 2);
        let (goal, steps) = match operation {
            Operation::AllReduce => (Goal::AllReduce, exchange + reduce),
            Operation::ReduceScatter => (Goal::ReduceScatter, exchange + reduce),
            Operation::AllGather => (
                Goal::AllGather { in_place },
                exchange + u64::from(!in_place),
            ),
            Operation::AllToAll => (Goal::AllToAll { in_place }, exchange + u64::from(!in_place)),
            _ => return None,
        };
        Some(Self {
            goal,
            rank: shape.rank,
            size: shape.size,
            count: shape.count,
            rounds: Rounds {
                total: shape.count,
                piece: shape.chunk,
                steps,
            },
        })
    }

    /// Whether it is one exchange with all ranks, in one round.
    pub(crate) fn is_exchange(&self) -> bool {
        let is_one = matches!(
            self.goal,
            Goal::AllReduce | Goal::AllGather { .. } | Goal::AllToAll { .. }
        );
        is_one && self.rounds.piece >= self.count
    }

    pub(crate) fn scratch(&self) -> u64 {
        match self.goal {
            Goal::AllGather { .. } | Goal::AllToAll { .. } => 0,
            _ if self.size == 2 => 0,
            _ => u64::from(self.size) * self.rounds.piece,
        }
    }

    pub(crate) fn step(&self, index: u64) -> Option<Step> {
        let (round, place) = self.rounds.locate(index)?;
        let place = place as u32;
        let peers = self.size - 1;
        Some(if place < peers {
            let to = after(self.rank, place + 1, self.size);
            Step::send(self.rank, to, self.contribution(to, round))
        } else if let Goal::AllGather { in_place } | Goal::AllToAll { in_place } = self.goal {
            self.gather(round, place - peers, in_place)
        } else {
            self.reduce(round, place - peers)
        })
    }

    fn gather(&self, round: Piece, place: u32, in_place: bool) -> Step {
        let block = |owner: Rank| {
            let offset = u64::from(owner) * self.count + round.offset;
            Span::output(offset, round.len)
        };
        let k = match (place, in_place) {
            (0, false) => {
                let own = self.contribution(self.rank, round);
                return Step::copy(self.rank, own, block(self.rank));
            }
            (_, false) => place,
            (_, true) => place + 1,
        };
        let from = before(self.rank, k, self.size);
        Step::recv(self.rank, from, block(from))
    }

    fn reduce(&self, round: Piece, place: u32) -> Step {
        let own = self.contribution(self.rank, round);
        let result = Span::output(round.offset, round.len);
        if self.size == 2 {
            let from = 1 - self.rank;
            return Step::recv_reduce(self.rank, from, own, result).of_contribution(true);
        }
        if place == self.size - 1 {
            return Step::local(self.rank, Kind::ReduceLocal, own, result);
        }
        let from = before(self.rank, place + 1, self.size);
        let kept = Span::scratch(u64::from(from) * round.len, round.len);
        Step::recv(self.rank, from, kept)
    }

    /// This rank's contribution for `owner`.
    fn contribution(&self, owner: Rank, round: Piece) -> Span {
        let block = match self.goal {
            Goal::AllReduce | Goal::AllGather { .. } => 0,
            Goal::AllToAll { .. } | Goal::ReduceScatter => u64::from(owner) * self.count,
        };
        Span::input(block + round.offset, round.len)
    }
}
