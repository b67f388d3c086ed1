//! Closed form of `all_reduce` with two trees.

use super::super::fabric::PORTS;
use super::ClosedForm;
use super::path::{Path, RECV, RECV_COPY_SEND, RECV_REDUCE, RECV_REDUCE_SEND, SEND, Work};
use crate::algorithms::{Node, Topology};
use crate::shape::Shape;
use crate::step::Rank;

impl ClosedForm<'_> {
    /// The first piece goes to the root and back; the others follow as fast as the busiest port or
    /// processor allows.
    pub(super) fn all_reduce_double_tree(&self) -> f64 {
        let half = self.bytes / 2.0;
        let piece = (self.chunk / 2.0).min(half);
        let rounds = (half / piece).ceil();
        let flow = self.busiest_port(half).max(self.busiest_processor(half));
        self.longest_path(piece) + flow * (rounds - 1.0) / rounds
    }

    /// The time from the furthest leaf to the root and back.
    fn longest_path(&self, piece: f64) -> f64 {
        let leaves = (0..2).flat_map(|tree| (0..self.size).map(move |rank| (tree, rank)));
        let path = leaves.map(|(tree, rank)| self.path_of(tree, rank, piece));
        let wire = self.path.wire(piece);
        // The root has the whole piece before it sends any of it, and so has the leaf. If ranks are
        // part of both trees, the other tree's piece delays this one once.
        let others = f64::from(self.size > 2) * wire;
        path.fold(0.0, f64::max) + 2.0 * (wire - self.path.wire(self.path.slice(piece))) + others
    }

    /// The time of the first slice from a leaf to the root and back.
    fn path_of(&self, tree: u32, leaf: Rank, piece: f64) -> f64 {
        let mut time = self.path.busy(SEND, self.path.slice(piece))
            + self.path.busy(RECV, self.path.slice(piece));
        let mut rank = leaf;
        while let Some(parent) = self.node(tree, rank).parent {
            time += self.edge(tree, rank, parent, piece);
            rank = parent;
        }
        time
    }

    /// The time from a rank to its parent, and back, including what the parent then does.
    fn edge(&self, tree: u32, rank: Rank, parent: Rank, piece: f64) -> f64 {
        let path = Path {
            hops: self.fabric.route(rank, parent, self.size).count() as f64,
            ..Path::new(self.fabric.link(rank, parent))
        };
        let node = self.node(tree, parent);
        let slice = path.slice(piece);
        // The other children are served in turn, with a whole piece each.
        let others = |work: Work, count: u32| {
            f64::from(count) * path.wire(piece).max(path.busy(work, piece))
        };
        let place =
            (0..node.children.count()).find(|index| node.children.outward(*index) == Some(rank));
        let (reduce, send) = match node.parent {
            Some(_) => (RECV_REDUCE_SEND, RECV_COPY_SEND),
            None => (RECV_REDUCE, SEND),
        };
        let up = others(RECV_REDUCE, node.children.count() - 1) + path.busy(reduce, slice);
        let down = others(SEND, place.unwrap_or(0)) + path.busy(send, slice);
        2.0 * (path.wire(slice) + path.latency()) + up + down
    }

    /// The time that `bytes` of each tree take at the port with the most traffic.
    fn busiest_port(&self, bytes: f64) -> f64 {
        let mut ports = vec![0.0; self.size as usize * PORTS];
        for (tree, rank) in (0..2).flat_map(|tree| (0..self.size).map(move |rank| (tree, rank))) {
            let Some(parent) = self.node(tree, rank).parent else {
                continue;
            };
            let wire = Path::new(self.fabric.link(rank, parent)).wire(bytes);
            let up = self.fabric.route(rank, parent, self.size);
            for hop in up.chain(self.fabric.route(parent, rank, self.size)) {
                ports[hop.out] += wire;
                ports[hop.into] += wire;
            }
        }
        ports.into_iter().fold(0.0, f64::max)
    }

    /// A rank is an inner node of one tree and a leaf of the other; of two ranks, each has the
    /// other as its child.
    fn busiest_processor(&self, bytes: f64) -> f64 {
        let all = if self.size == 2 {
            &[RECV_REDUCE, SEND, SEND, RECV][..]
        } else {
            &[
                RECV_REDUCE,
                RECV_REDUCE_SEND,
                RECV_COPY_SEND,
                SEND,
                SEND,
                RECV,
            ]
        };
        all.iter().map(|work| self.path.busy(*work, bytes)).sum()
    }

    fn node(&self, tree: u32, rank: Rank) -> Node {
        let shape = Shape {
            rank,
            size: self.size,
            count: 1,
            root: 0,
            chunk: 1,
            hosts: None,
        };
        Topology::DoubleTree.node(tree, true, &shape)
    }
}
