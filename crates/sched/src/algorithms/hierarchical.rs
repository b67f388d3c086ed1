//! All-reduce in two levels: the ranks of a host divide among them what crosses between hosts.
//!
//! A column is a position that every host has. A round is divided into one share per column, and
//! each share into one block per host. First, the ranks of a host reduce each share, around their
//! ring, onto the rank whose position is the share's column. Then the ranks of a column reduce and
//! distribute the blocks around the ring of hosts. At last, the ranks of a host pass the shares
//! around. On hosts larger than the smallest, ranks beyond the columns own no share: they only take
//! part in the host's rings.
//!
//! A block is reduced within the hosts just before the ring of hosts needs it, and distributed just
//! after it is complete there. So messages between hosts are in flight while the ranks of a host
//! exchange with each other. Several small blocks are processed at a time within a host.
//!
//! Every ring starts by sending at most a chunk per link, and from then on receives before it
//! sends.

use crate::hosts::{Hosts, RingPosition};
use crate::rounds::{Piece, Rounds, Split, before};
use crate::shape::Shape;
use crate::step::{Rank, Span, Step};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hierarchical {
    rank: Rank,
    hosts: Hosts,
    rounds: Rounds,
    full: Cut,
    last: Cut,
}

/// The division of a round: into the blocks of column 0, the blocks of column 1, and so on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cut {
    blocks: Split,
    /// The number of blocks of a share that the ranks of a host process in one turn.
    per_turn: u32,
}

impl Hierarchical {
    pub(crate) fn new(hosts: Hosts, shape: &Shape) -> Self {
        let blocks = hosts.columns * hosts.across.size;
        let piece = u64::from(blocks) * shape.chunk;
        let cut = |len: u64| {
            let blocks = Split::new(len, blocks, shape.chunk);
            let fit = shape.chunk / blocks.longest().max(1);
            let per_turn = fit.min(u64::from(hosts.across.size)) as u32;
            Cut { blocks, per_turn }
        };
        let turns = 2 * u64::from(hosts.across.size);
        Self {
            rank: shape.rank,
            hosts,
            rounds: Rounds {
                total: shape.count,
                piece,
                steps: turns * (u64::from(hosts.inside.size) + 1),
            },
            full: cut(piece),
            last: cut(shape.count % piece),
        }
    }

    /// A round has one turn per block to reduce, then one per block to distribute. A turn is one
    /// pass around the ring of the host's ranks, and one step of the ring of hosts.
    pub(crate) fn step(&self, index: u64) -> Option<Step> {
        let (round, place) = self.rounds.locate(index)?;
        let RingPosition { size: hosts, .. } = self.hosts.across;
        let inside = u64::from(self.hosts.inside.size);
        let turn = (place / (inside + 1)) as u32;
        let k = (place % (inside + 1)) as u32;
        Some(match (turn.checked_sub(hosts), k) {
            (None, k) if k == self.hosts.inside.size => self.across(round, turn),
            (None, k) => self.reduce_scatter(round, turn, k),
            // The last turn of the reduction has already completed the first block.
            (Some(0), 0) => Step::nothing(self.rank),
            (Some(turn), 0) => self.across(round, hosts - 1 + turn),
            (Some(turn), k) => self.all_gather(round, turn, k - 1),
        })
    }

    /// Step `k` of the ring of the host's ranks that leaves each share with its owner.
    fn reduce_scatter(&self, round: Piece, turn: u32, k: u32) -> Step {
        let RingPosition {
            index,
            size,
            next,
            prev,
        } = self.hosts.inside;
        if size == 1 {
            return Step::nothing(self.rank);
        }
        let owner = before(index, k + 1, size);
        let Piece { offset, len } = self.group(round, owner, self.group_to_reduce(round, turn));
        let input = Span::input(offset, len);
        if k == 0 {
            Step::send(self.rank, next, input)
        } else if k < size - 1 {
            Step::recv_reduce_send(prev, next, input).of_contribution(k == 1)
        } else {
            let output = Span::output(offset, len);
            Step::recv_reduce(self.rank, prev, input, output).of_contribution(k == 1)
        }
    }

    /// Step `k` of the ring of hosts, which handles the block of the host `k` positions before this
    /// one.
    fn across(&self, round: Piece, k: u32) -> Step {
        let RingPosition {
            size, next, prev, ..
        } = self.hosts.across;
        let column = self.hosts.inside.index;
        if size == 1 || column >= self.hosts.columns {
            return Step::nothing(self.rank);
        }
        let block = self.block(k);
        let Piece { offset, len } = self.piece(round, column, block, block + 1);
        let output = Span::output(offset, len);
        // A rank that is alone on its host only has its own contribution.
        let partial = if self.hosts.inside.size == 1 {
            Span::input(offset, len)
        } else {
            output
        };
        let is_contribution = k == 1 && self.hosts.prev_is_alone;
        if k == 0 {
            Step::send(self.rank, next, partial)
        } else if k < size - 1 {
            Step::recv_reduce_send(prev, next, partial).of_contribution(is_contribution)
        } else if k == size - 1 {
            Step::recv_reduce_copy_send(prev, next, partial, output)
                .of_contribution(is_contribution)
        } else if k < 2 * size - 2 {
            Step::recv_copy_send(prev, next, output)
        } else {
            Step::recv(self.rank, prev, output)
        }
    }

    /// Step `k` of the ring of the host's ranks that gives all shares to each rank.
    fn all_gather(&self, round: Piece, turn: u32, k: u32) -> Step {
        let RingPosition {
            index,
            size,
            next,
            prev,
        } = self.hosts.inside;
        if size == 1 {
            return Step::nothing(self.rank);
        }
        let owner = before(index, k, size);
        let Piece { offset, len } = self.group(round, owner, self.group_to_gather(round, turn));
        let output = Span::output(offset, len);
        if k == 0 {
            Step::send(self.rank, next, output)
        } else if k < size - 1 {
            Step::recv_copy_send(prev, next, output)
        } else {
            Step::recv(self.rank, prev, output)
        }
    }

    /// The block that step `k` of the ring of hosts handles.
    fn block(&self, k: u32) -> u32 {
        let RingPosition { index, size, .. } = self.hosts.across;
        before(index, if k < size { k } else { k - size }, size)
    }

    /// The group of blocks that the ring of hosts begins with step `k`; `None` if it begins none
    /// there. A host processes the blocks of a group together.
    fn group_to_reduce(&self, round: Piece, k: u32) -> Option<u32> {
        let per_turn = self.cut(round).per_turn;
        let group = |k| self.block(k) / per_turn;
        // The blocks count down from the own one, and wrap around: the first group may occur again.
        let is_first = k == 0 || group(k) != group(k - 1) && group(k) != group(0);
        is_first.then(|| group(k))
    }

    /// The group of blocks that the ring of hosts completes in turn `turn`; `None` if it completes
    /// none there.
    fn group_to_gather(&self, round: Piece, turn: u32) -> Option<u32> {
        let per_turn = self.cut(round).per_turn;
        let last = self.hosts.across.size - 1;
        let group = |turn| self.block(last + turn) / per_turn;
        let is_last = turn == last || group(turn) != group(turn + 1) && group(turn) != group(last);
        is_last.then(|| group(turn))
    }

    /// The part of a group that `owner` owns.
    fn group(&self, round: Piece, owner: u32, group: Option<u32>) -> Piece {
        match group {
            Some(group) if owner < self.hosts.columns => {
                let per_turn = self.cut(round).per_turn;
                let first = group * per_turn;
                let end = (first + per_turn).min(self.hosts.across.size);
                self.piece(round, owner, first, end)
            }
            _ => Piece { offset: 0, len: 0 },
        }
    }

    /// Blocks `first..end` of a column.
    fn piece(&self, round: Piece, column: u32, first: u32, end: u32) -> Piece {
        let before = column * self.hosts.across.size;
        let piece = self.cut(round).blocks.run(before + first, before + end);
        Piece {
            offset: round.offset + piece.offset,
            ..piece
        }
    }

    fn cut(&self, round: Piece) -> &Cut {
        if round.len == self.rounds.piece {
            &self.full
        } else {
            &self.last
        }
    }
}
