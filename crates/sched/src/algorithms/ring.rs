//! Blocks travel around the ring of all ranks, and are reduced or stored on the way.
//!
//! Every rank starts a round by sending, so each link holds what one step sends (at most a chunk)
//! before any rank has received. From then on every step receives before it sends.

use spark_ccl_types::Operation;

use crate::rounds::{Piece, Rounds, Split, after, before};
use crate::shape::Shape;
use crate::step::{Rank, Span, Step};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ring {
    goal: Goal,
    rank: Rank,
    size: u32,
    next: Rank,
    prev: Rank,
    count: u64,
    rounds: Rounds,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    /// Full rounds have blocks of `chunk` elements; `last` is the last, shorter round.
    AllReduce {
        chunk: u64,
        last: Split,
    },
    AllGather {
        in_place: bool,
    },
    ReduceScatter,
}

impl Ring {
    /// `operation` is `AllReduce`, `AllGather` or `ReduceScatter`; returns `None` for others.
    pub(crate) fn new(operation: Operation, in_place: bool, shape: &Shape) -> Option<Self> {
        let size = u64::from(shape.size);
        let (goal, piece, steps) = match operation {
            Operation::AllReduce => {
                let piece = size * shape.chunk;
                let last = Split::new(shape.count % piece, shape.size, shape.chunk);
                let chunk = shape.chunk;
                (Goal::AllReduce { chunk, last }, piece, 2 * size - 1)
            }
            Operation::AllGather => {
                let steps = size + u64::from(!in_place);
                (Goal::AllGather { in_place }, shape.chunk, steps)
            }
            Operation::ReduceScatter => (Goal::ReduceScatter, shape.chunk, size),
            _ => return None,
        };
        Some(Self {
            goal,
            rank: shape.rank,
            size: shape.size,
            next: after(shape.rank, 1, shape.size),
            prev: before(shape.rank, 1, shape.size),
            count: shape.count,
            rounds: Rounds {
                total: shape.count,
                piece,
                steps,
            },
        })
    }

    pub(crate) fn step(&self, index: u64) -> Option<Step> {
        let (round, place) = self.rounds.locate(index)?;
        let place = place as u32;
        Some(match self.goal {
            Goal::AllReduce { chunk, last } => self.all_reduce(round, place, chunk, &last),
            Goal::AllGather { in_place } => self.all_gather(round, place, in_place),
            Goal::ReduceScatter => self.reduce_scatter(round, place),
        })
    }

    /// Step `k` handles the block of the rank `k` positions before this one. Blocks are reduced on
    /// the first turn around the ring, complete after `size - 1` steps, and distributed on the
    /// second turn.
    fn all_reduce(&self, round: Piece, k: u32, chunk: u64, last: &Split) -> Step {
        let n = self.size;
        let turn = if k < n { k } else { k - n };
        let owner = before(self.rank, turn, n);
        let block = if round.len == self.rounds.piece {
            Piece {
                offset: u64::from(owner) * chunk,
                len: chunk,
            }
        } else {
            last.block(owner)
        };
        let offset = round.offset + block.offset;
        let input = Span::input(offset, block.len);
        let output = Span::output(offset, block.len);
        if k == 0 {
            Step::send(self.rank, self.next, input)
        } else if k < n - 1 {
            Step::recv_reduce_send(self.prev, self.next, input).of_contribution(k == 1)
        } else if k == n - 1 {
            Step::recv_reduce_copy_send(self.prev, self.next, input, output).of_contribution(k == 1)
        } else if k < 2 * n - 2 {
            Step::recv_copy_send(self.prev, self.next, output)
        } else {
            Step::recv(self.rank, self.prev, output)
        }
    }

    fn all_gather(&self, round: Piece, place: u32, in_place: bool) -> Step {
        let own = Span::input(round.offset, round.len);
        let block = |owner: Rank| {
            let offset = u64::from(owner) * self.count + round.offset;
            Span::output(offset, round.len)
        };
        // The own block is copied while its first message is in flight.
        let k = match (place, in_place) {
            (0, _) => return Step::send(self.rank, self.next, own),
            (1, false) => return Step::copy(self.rank, own, block(self.rank)),
            (_, false) => place - 1,
            (_, true) => place,
        };
        let received = block(before(self.rank, k, self.size));
        if k < self.size - 1 {
            Step::recv_copy_send(self.prev, self.next, received)
        } else {
            Step::recv(self.rank, self.prev, received)
        }
    }

    fn reduce_scatter(&self, round: Piece, k: u32) -> Step {
        let owner = before(self.rank, k + 1, self.size);
        let offset = u64::from(owner) * self.count + round.offset;
        let input = Span::input(offset, round.len);
        if k == 0 {
            Step::send(self.rank, self.next, input)
        } else if k < self.size - 1 {
            Step::recv_reduce_send(self.prev, self.next, input).of_contribution(k == 1)
        } else {
            let output = Span::output(round.offset, round.len);
            Step::recv_reduce(self.rank, self.prev, input, output).of_contribution(k == 1)
        }
    }
}
