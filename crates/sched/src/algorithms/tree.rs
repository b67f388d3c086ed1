//! Broadcast down a tree, reduction up a tree, or both.
//!
//! In one direction messages flow along the tree, so the rank that is furthest behind can always
//! continue. In both directions, a rank sends some rounds up before it waits for the first to come
//! down: two more with each level of distance from the root. This keeps all levels busy, and no
//! link holds more than two rounds.

mod topology;

use spark_ccl_types::Operation;
pub(crate) use topology::{Node, Topology};

use crate::rounds::{Piece, Rounds};
use crate::shape::Shape;
use crate::step::{Rank, Span, Step};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tree {
    goal: Goal,
    rank: Rank,
    /// Whether this is the root of a broadcast with a separate output, to which it copies.
    root_copies: bool,
    branches: [Branch; 2],
    channels: u32,
    scratch: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    AllReduce,
    Broadcast,
    Reduce,
}

/// One tree, on a channel of its own, with its share of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Branch {
    node: Node,
    /// The children that have no children themselves: a bit each, in the order for incoming data.
    leaves: u32,
    /// The first element of the share.
    offset: u64,
    rounds: Rounds,
    /// The offset of partial results that are not stored in the output.
    scratch: u64,
    /// The steps per round towards the root, and away from it.
    up: u64,
    down: u64,
    /// The number of rounds that go up before the first comes down.
    lead: u64,
}

impl Tree {
    /// `operation` is `AllReduce` (with [`Topology::DoubleTree`]), `Broadcast` or `Reduce`; returns
    /// `None` for others.
    pub(crate) fn new(
        operation: Operation,
        topology: Topology,
        in_place: bool,
        shape: &Shape,
    ) -> Option<Self> {
        let goal = match operation {
            Operation::AllReduce => Goal::AllReduce,
            Operation::Broadcast => Goal::Broadcast,
            Operation::Reduce => Goal::Reduce,
            _ => return None,
        };
        let channels = topology.trees();
        let first = shares(shape.count, channels);
        let piece = match goal {
            Goal::AllReduce => shape.chunk.div_ceil(2).min(first),
            Goal::Broadcast | Goal::Reduce => shape.chunk.min(first),
        };
        let root_copies = goal == Goal::Broadcast && !in_place && shape.rank == shape.root;
        let branch = |tree, offset, len| {
            let share = Piece { offset, len };
            Branch::new(goal, topology, root_copies, shape, tree, share, piece)
        };
        let branches = [
            branch(0, 0, first),
            branch(channels - 1, first, shape.count - first),
        ];
        let needs_scratch = |branch: &Branch| {
            goal == Goal::Reduce && branch.node.parent.is_some() && branch.node.children.count() > 1
        };
        let scratch = if branches.iter().any(needs_scratch) {
            u64::from(channels) * piece
        } else {
            0
        };
        Some(Self {
            goal,
            rank: shape.rank,
            root_copies,
            branches,
            channels,
            scratch,
        })
    }

    pub(crate) fn channels(&self) -> u32 {
        self.channels
    }

    pub(crate) fn scratch(&self) -> u64 {
        self.scratch
    }

    pub(crate) fn step(&self, channel: u32, index: u64) -> Option<Step> {
        if channel >= self.channels {
            return None;
        }
        let branch = &self.branches[channel as usize];
        let (direction, round, place) = branch.locate(index)?;
        let piece = branch.rounds.round(round)?;
        let piece = Piece {
            offset: branch.offset + piece.offset,
            ..piece
        };
        Some(match direction {
            Direction::Up => self.reduce(branch, piece, place as u32),
            Direction::Down => self.broadcast(branch, piece, place as u32),
        })
    }

    /// Receives contributions from the children, and sends the sum to the parent with the last one.
    fn reduce(&self, branch: &Branch, piece: Piece, place: u32) -> Step {
        let is_leaf = branch.leaves >> place & 1 != 0;
        let input = Span::input(piece.offset, piece.len);
        let output = Span::output(piece.offset, piece.len);
        let Node { parent, children } = branch.node;
        let partial = match (self.goal, parent) {
            (Goal::Reduce, Some(_)) => Span::scratch(branch.scratch, piece.len),
            _ => output,
        };
        let own = if place == 0 { input } else { partial };
        match (parent, children.inward(place)) {
            (Some(parent), None) => Step::send(self.rank, parent, input),
            (Some(parent), Some(child)) if place + 1 == children.count() => {
                Step::recv_reduce_send(child, parent, own).of_contribution(is_leaf)
            }
            (_, child) => Step::recv_reduce(self.rank, child.unwrap_or(self.rank), own, partial)
                .of_contribution(is_leaf),
        }
    }

    /// Receives the data from the parent, forwards it to the first child in the same step, and then
    /// sends it to the others.
    fn broadcast(&self, branch: &Branch, piece: Piece, place: u32) -> Step {
        let input = Span::input(piece.offset, piece.len);
        let output = Span::output(piece.offset, piece.len);
        let Node { parent, children } = branch.node;
        let have = if self.goal == Goal::Broadcast && parent.is_none() {
            input
        } else {
            output
        };
        match (parent, children.outward(place)) {
            (Some(parent), None) => Step::recv(self.rank, parent, output),
            (Some(parent), Some(child)) if place == 0 => {
                Step::recv_copy_send(parent, child, output)
            }
            (_, Some(child)) => Step::send(self.rank, child, have),
            (None, None) => Step::copy(self.rank, input, output),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

impl Branch {
    /// Tree `tree` for the elements of `share`, in rounds of `piece` elements.
    fn new(
        goal: Goal,
        topology: Topology,
        root_copies: bool,
        shape: &Shape,
        tree: u32,
        share: Piece,
        piece: u64,
    ) -> Self {
        let is_free = goal == Goal::AllReduce;
        let node = topology.node(tree, is_free, shape);
        let rounds = share.len.div_ceil(piece);
        let children = u64::from(node.children.count());
        let (inward, outward) = match node.parent {
            Some(_) => (children.max(1), children.max(1)),
            None => (children, children + u64::from(root_copies)),
        };
        let (up, down, lead) = match goal {
            Goal::AllReduce => {
                let lead = 2 * u64::from(topology.depth(tree, true, shape)) + 1;
                (inward, outward, rounds.min(lead))
            }
            Goal::Reduce => (inward, 0, rounds),
            Goal::Broadcast => (0, outward, 0),
        };
        Self {
            node,
            leaves: topology.leaves(tree, is_free, shape, node.children),
            offset: share.offset,
            rounds: Rounds {
                total: share.len,
                piece,
                steps: up + down,
            },
            scratch: u64::from(tree) * piece,
            up,
            down,
            lead,
        }
    }

    /// The direction and the round of step `index`, and its index within the round.
    ///
    /// First `lead` rounds go up; then one comes down for each that goes up; then the rest come
    /// down.
    fn locate(&self, index: u64) -> Option<(Direction, u64, u64)> {
        let (up, down) = (self.up, self.down);
        let Some(index) = index.checked_sub(self.lead * up) else {
            return Some((Direction::Up, index / up, index % up));
        };
        if down == 0 {
            return None;
        }
        let rounds = self.rounds.total.div_ceil(self.rounds.piece);
        let both = (rounds - self.lead) * (up + down);
        let Some(index) = index.checked_sub(both) else {
            let (round, place) = (index / (up + down), index % (up + down));
            return Some(match place.checked_sub(down) {
                None => (Direction::Down, round, place),
                Some(place) => (Direction::Up, round + self.lead, place),
            });
        };
        let round = rounds - self.lead + index / down;
        (round < rounds).then_some((Direction::Down, round, index % down))
    }
}

/// The elements of the first of `trees` trees.
fn shares(count: u64, trees: u32) -> u64 {
    if trees == 1 {
        return count;
    }
    let half = count.div_ceil(2);
    // The second half starts at a cache line if that does not cost balance.
    if half >= 128 {
        half.next_multiple_of(16)
    } else {
        half
    }
}
