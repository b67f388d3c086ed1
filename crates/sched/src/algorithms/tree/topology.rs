//! The parent and the children of each rank in a tree.

use crate::rounds::{after, before};
use crate::shape::Shape;
use crate::step::Rank;

/// The form of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Topology {
    /// Every rank has at most one child.
    Chain,
    /// The ranks `1, 2, 4, ...` positions after the root are its children, and so on.
    Binomial,
    /// Two binary trees, in which the inner nodes of one are leaves of the other. A given root is
    /// the parent of both roots.
    DoubleTree,
}

/// The neighbours of a rank in a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Node {
    /// `None` at the root.
    pub(crate) parent: Option<Rank>,
    pub(crate) children: Children,
}

/// The children of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Children {
    /// The first `count` entries.
    Listed { ranks: [Rank; 2], count: u32 },
    /// The ranks `1, 2, 4, ...` positions after `rank`, of `size` ranks.
    Doubling { rank: Rank, size: u32, count: u32 },
}

impl Children {
    /// The number of children.
    pub(crate) fn count(self) -> u32 {
        match self {
            Self::Listed { count, .. } | Self::Doubling { count, .. } => count,
        }
    }

    /// Child `index` in the order for outgoing data: the child with the largest subtree first.
    pub(crate) fn outward(self, index: u32) -> Option<Rank> {
        let last = self.count().checked_sub(1)?;
        match self {
            Self::Listed { .. } => self.get(index),
            Self::Doubling { .. } => self.get(last.checked_sub(index)?),
        }
    }

    /// Child `index` in the order for incoming data: the child that is ready first.
    pub(crate) fn inward(self, index: u32) -> Option<Rank> {
        self.get(index)
    }

    fn get(self, index: u32) -> Option<Rank> {
        (index < self.count()).then(|| match self {
            Self::Listed { ranks, .. } => ranks[index as usize],
            Self::Doubling { rank, size, .. } => after(rank, 1 << index, size),
        })
    }

    fn listed(children: [Option<Rank>; 2]) -> Self {
        let (ranks, count) = match children {
            [Some(first), Some(second)] => ([first, second], 2),
            [Some(only), None] | [None, Some(only)] => ([only, only], 1),
            [None, None] => ([0, 0], 0),
        };
        Self::Listed { ranks, count }
    }
}

impl Topology {
    /// The number of trees.
    pub(crate) fn trees(self) -> u32 {
        match self {
            Self::Chain | Self::Binomial => 1,
            Self::DoubleTree => 2,
        }
    }

    /// The distance of `shape.rank` from the root of tree `tree`.
    pub(crate) fn depth(self, tree: u32, free: bool, shape: &Shape) -> u32 {
        let parent = |shape: &Shape| {
            let rank = self.node(tree, free, shape).parent?;
            Some(Shape { rank, ..*shape })
        };
        std::iter::successors(parent(shape), parent).count() as u32
    }

    /// A rank's children that have no children themselves: a bit each, in the order for incoming
    /// data.
    pub(crate) fn leaves(self, tree: u32, free: bool, shape: &Shape, children: Children) -> u32 {
        let is_leaf = |rank: Rank| {
            let node = self.node(tree, free, &Shape { rank, ..*shape });
            node.children.count() == 0
        };
        (0..children.count())
            .filter(|&index| children.inward(index).is_some_and(is_leaf))
            .fold(0, |leaves, index| leaves | 1 << index)
    }

    /// The neighbours of `shape.rank` in tree `tree`. If the tree is `free` to have any root, the
    /// two trees of a double tree have different roots, and `shape.root` is ignored.
    pub(crate) fn node(self, tree: u32, free: bool, shape: &Shape) -> Node {
        let size = shape.size;
        let root = if free { 0 } else { shape.root };
        let place = before(shape.rank, root, size);
        let rank_at = |place: u32| after(root, place, size);
        match self {
            Self::Chain => Node {
                parent: place.checked_sub(1).map(rank_at),
                children: Children::listed([(place + 1 < size).then(|| rank_at(place + 1)), None]),
            },
            Self::Binomial => Node {
                parent: (place > 0).then(|| rank_at(place & (place - 1))),
                children: Children::Doubling {
                    rank: shape.rank,
                    size,
                    count: doublings(place, size),
                },
            },
            Self::DoubleTree if free => InOrder { tree, nodes: size }.node(place).map(rank_at),
            Self::DoubleTree => {
                let inner = InOrder {
                    tree,
                    nodes: size - 1,
                };
                if place == 0 {
                    return Node {
                        parent: None,
                        children: Children::listed([Some(rank_at(1 + inner.root())), None]),
                    };
                }
                let mut node = inner.node(place - 1).map(|place| rank_at(1 + place));
                node.parent = node.parent.or(Some(root));
                node
            }
        }
    }
}

/// The number of positions `1, 2, 4, ...` after `place` that are its children in a binomial tree:
/// the positions below its lowest set bit that exist.
fn doublings(place: u32, size: u32) -> u32 {
    let room = size - place;
    let exist = room.ilog2() + u32::from(!room.is_power_of_two());
    exist.min(place.trailing_zeros())
}

/// A binary tree whose nodes are numbered from left to right, from 1: odd ones are leaves. In the
/// second tree (`tree` 1), every rank has the next number, so leaves and inner nodes are swapped.
/// If the number of nodes is odd, one rank is a leaf of both.
#[derive(Debug, Clone, Copy)]
struct InOrder {
    tree: u32,
    nodes: u32,
}

/// The neighbours, by position in `0..nodes`.
struct Places {
    parent: Option<u32>,
    children: [Option<u32>; 2],
}

impl Places {
    fn map(self, rank_at: impl Fn(u32) -> Rank) -> Node {
        Node {
            parent: self.parent.map(&rank_at),
            children: Children::listed(self.children.map(|child| child.map(&rank_at))),
        }
    }
}

impl InOrder {
    fn node(self, place: u32) -> Places {
        let number = after(place, self.tree, self.nodes) + 1;
        let low = number & number.wrapping_neg();
        let children = if low == 1 {
            [None, None]
        } else {
            let right = self.existing(number + low / 2);
            [Some(number - low / 2), right]
        };
        Places {
            parent: self.parent(number).map(|number| self.place(number)),
            children: children.map(|child| child.map(|number| self.place(number))),
        }
    }

    fn root(self) -> u32 {
        self.place(1 << self.nodes.ilog2())
    }

    fn place(self, number: u32) -> u32 {
        before(number - 1, self.tree, self.nodes)
    }

    /// The next existing node above; numbers that do not exist are skipped.
    fn parent(self, number: u32) -> Option<u32> {
        let mut number = u64::from(number);
        let nodes = u64::from(self.nodes);
        if number == 1 << nodes.ilog2() {
            return None;
        }
        loop {
            let low = number & number.wrapping_neg();
            number = (number - low) | (2 * low);
            if number <= nodes {
                return Some(number as u32);
            }
        }
    }

    /// The top existing node of the subtree under `number`.
    fn existing(self, mut number: u32) -> Option<u32> {
        while number > self.nodes {
            let low = number & number.wrapping_neg();
            if low == 1 {
                return None;
            }
            number -= low / 2;
        }
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(topology: Topology, tree: u32, free: bool, size: u32, root: Rank) -> Vec<Node> {
        let shape = |rank| Shape {
            rank,
            size,
            count: 1,
            root,
            chunk: 1,
            hosts: None,
        };
        (0..size)
            .map(|rank| topology.node(tree, free, &shape(rank)))
            .collect()
    }

    /// Checks that parents and children agree, and that all nodes descend from one root.
    fn depth(nodes: &[Node]) -> usize {
        let mut deepest = 0;
        assert_eq!(nodes.iter().filter(|node| node.parent.is_none()).count(), 1);
        for (rank, node) in nodes.iter().enumerate() {
            for index in 0..node.children.count() {
                let child = node.children.inward(index).unwrap();
                assert_eq!(nodes[child as usize].parent, Some(rank as Rank));
            }
            let mut above = rank;
            let mut levels = 0;
            while let Some(parent) = nodes[above].parent {
                above = parent as usize;
                levels += 1;
                assert!(levels < nodes.len(), "a cycle");
            }
            deepest = deepest.max(levels);
        }
        let children: u32 = nodes.iter().map(|node| node.children.count()).sum();
        assert_eq!(children as usize, nodes.len() - 1);
        deepest
    }

    #[test]
    fn all_trees_are_trees() {
        for size in 2..=130_u32 {
            for root in [0, 1, size - 1] {
                let log = (size.ilog2() + 1) as usize;
                assert_eq!(
                    depth(&nodes(Topology::Chain, 0, false, size, root)),
                    size as usize - 1
                );
                assert!(depth(&nodes(Topology::Binomial, 0, false, size, root)) <= log);
                for tree in 0..2 {
                    let rooted = nodes(Topology::DoubleTree, tree, false, size, root);
                    assert!(depth(&rooted) <= log + 1);
                    assert_eq!(rooted[root as usize].parent, None);
                    assert!(depth(&nodes(Topology::DoubleTree, tree, true, size, root)) <= log);
                }
            }
        }
    }

    #[test]
    fn inner_nodes_of_one_tree_are_leaves_of_the_other() {
        for size in 2..=130_u32 {
            let inner = |tree| -> Vec<bool> {
                nodes(Topology::DoubleTree, tree, true, size, 0)
                    .iter()
                    .map(|node| node.children.count() > 0)
                    .collect()
            };
            let (first, second) = (inner(0), inner(1));
            assert!(!first.iter().zip(&second).any(|(a, b)| *a && *b));
        }
    }
}
