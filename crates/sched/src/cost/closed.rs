//! Closed-form estimates of the time of an operation.

mod all_reduce;
mod double_tree;
mod path;

use path::{Path, RECV, RECV_COPY_SEND, RECV_REDUCE, RECV_REDUCE_SEND, SEND, Work};
use spark_ccl_types::{Algorithm, Operation};

use super::{Fabric, LinkCost};
use crate::shape::Shape;

/// The microseconds that an operation takes, in place; infinite if the algorithm has no schedule
/// for it.
///
/// `shape.rank`, `shape.root` and `shape.hosts` are ignored: [`Algorithm::Hierarchical`] is assumed
/// to use [`Fabric::hosts`]. The forms for `all_reduce` with rings, double trees, halving and
/// doubling, and the hierarchical algorithm account for shared ports of `fabric`; all others use
/// its slowest link.
pub fn estimate(
    operation: Operation,
    algorithm: Algorithm,
    shape: &Shape,
    bytes_per_element: u64,
    fabric: &Fabric,
) -> f64 {
    if !Algorithm::of(operation).contains(&algorithm) {
        return f64::INFINITY;
    }
    if shape.size < 2 || shape.count == 0 && operation.moves_data() {
        return 0.0;
    }
    let cost = fabric.outer(shape.size);
    let form = ClosedForm {
        fabric,
        path: Path::new(cost),
        size: shape.size,
        ranks: f64::from(shape.size),
        levels: f64::from(shape.size.next_power_of_two().ilog2()),
        bytes: shape.count as f64 * bytes_per_element as f64,
        chunk: shape.chunk.min(shape.count).max(1) as f64 * bytes_per_element as f64,
    };
    match (operation, algorithm) {
        (Operation::AllReduce, Algorithm::RecursiveDoubling) => {
            form.doubling(shape.size.is_power_of_two())
        }
        (_, Algorithm::Dissemination) => form.levels * (2.0 * cost.overhead_us + cost.latency_us),
        (Operation::AllReduce, Algorithm::Ring) => form.all_reduce_ring(),
        (Operation::AllReduce, Algorithm::HalvingDoubling) => form.halving(),
        (Operation::AllReduce, Algorithm::Hierarchical) => form.hierarchical(),
        (Operation::AllReduce, Algorithm::DoubleTree) => form.all_reduce_double_tree(),
        (_, Algorithm::Ring) => form.ring(operation),
        (_, Algorithm::Direct) => form.direct(operation),
        (_, Algorithm::Chain) => form.chain(operation),
        (_, Algorithm::Binomial) => form.binomial(operation),
        (_, Algorithm::DoubleTree) => form.double_tree(operation),
        (_, Algorithm::Linear) => form.linear(),
        (_, Algorithm::Pairwise) => (form.ranks - 1.0) * form.path.exchange(form.bytes),
        (_, Algorithm::OneSided) => form.one_sided(operation),
        _ => f64::INFINITY,
    }
}

struct ClosedForm<'a> {
    fabric: &'a Fabric,
    /// The path over the slowest link.
    path: Path<'a>,
    size: u32,
    ranks: f64,
    /// The levels of a binary tree.
    levels: f64,
    /// The bytes of the shape's count, and of its chunk.
    bytes: f64,
    chunk: f64,
}

impl ClosedForm<'_> {
    /// Every step waits for the neighbour's previous step, slice by slice.
    fn ring(&self, operation: Operation) -> f64 {
        let inner = self.ranks - 2.0;
        self.rounds(self.bytes, |bytes| {
            self.path.busy(SEND, bytes)
                + match operation {
                    Operation::AllGather => {
                        inner * self.path.stage(RECV_COPY_SEND, bytes)
                            + self.path.stage(RECV, bytes)
                    }
                    _ => {
                        inner * self.path.stage(RECV_REDUCE_SEND, bytes)
                            + self.path.stage(RECV_REDUCE, bytes)
                    }
                }
        })
    }

    /// All sends, then all receives, then the reduction.
    fn direct(&self, operation: Operation) -> f64 {
        let peers = self.ranks - 1.0;
        let reduces = operation.reduces();
        self.rounds(self.bytes, |bytes| {
            let send = peers * self.path.busy(SEND, bytes).max(self.path.wire(bytes));
            let receive = match (reduces, self.ranks > 2.0) {
                (true, false) => self.path.busy(RECV_REDUCE, bytes),
                _ => peers * self.path.busy(RECV, bytes),
            };
            let reduce = if reduces && self.ranks > 2.0 {
                self.ranks * bytes * self.path.cost.reduce_us_per_byte
            } else {
                0.0
            };
            send + self.path.cost.latency_us + receive + reduce
        })
    }

    fn doubling(&self, is_power_of_two: bool) -> f64 {
        let (phases, folds) = if is_power_of_two {
            (self.levels, 0.0)
        } else {
            (self.levels - 1.0, 1.0)
        };
        self.rounds(self.bytes, |bytes| {
            let phase = self.path.hop(SEND, RECV_REDUCE, bytes, false);
            let fold = self.path.hop(SEND, RECV_REDUCE, bytes, true)
                + self.path.hop(SEND, RECV, bytes, true);
            phases * phase + folds * fold
        })
    }

    /// Slices flow through all ranks.
    fn chain(&self, operation: Operation) -> f64 {
        let (inner, last) = Self::relay(operation);
        let slice = self.path.slice(self.bytes);
        let fill = self.path.busy(SEND, slice)
            + (self.ranks - 2.0) * self.path.busy(inner, slice)
            + (self.ranks - 1.0) * (self.path.wire(slice) + self.path.cost.latency_us);
        let slowest = if self.ranks > 2.0 { inner } else { last };
        let flow = self
            .path
            .busy(slowest, self.bytes)
            .max(self.path.busy(last, self.bytes));
        fill + flow.max(self.path.wire(self.bytes))
    }

    /// In every round, the root exchanges with one child on each level.
    fn binomial(&self, operation: Operation) -> f64 {
        let (_, last) = Self::relay(operation);
        let root = if operation == Operation::Reduce {
            RECV_REDUCE
        } else {
            SEND
        };
        let slice = self.path.slice(self.chunk);
        let fill = self.levels * (self.path.wire(slice) + self.path.cost.latency_us)
            + self.path.busy(SEND, slice)
            + self.path.busy(last, slice);
        let flow = self.levels
            * self
                .path
                .busy(root, self.bytes)
                .max(self.path.wire(self.bytes));
        fill + flow
    }

    /// Each rank is an inner node for one half of the data, and a leaf for the other. The two
    /// channels share the processor and the wire.
    fn double_tree(&self, operation: Operation) -> f64 {
        let half = self.bytes / 2.0;
        let piece = self.chunk.min(half);
        // With two ranks there are no inner nodes: the only child of the root is the other rank.
        let inner = f64::from(self.ranks > 2.0);
        let busy = |relay: Work, other: Work, ends: f64| {
            let relay = inner * self.path.busy(relay, half);
            let processor = relay + self.path.busy(other, half) + ends;
            processor.max(2.0 * (1.0 + inner) * self.path.wire(half))
        };
        let level = |relay: Work, other: Work| {
            self.path.busy(relay, self.path.slice(piece))
                + self.path.busy(other, piece)
                + 2.0 * self.path.wire(piece)
                + self.path.cost.latency_us
        };
        let up = busy(RECV_REDUCE_SEND, RECV_REDUCE, self.path.busy(SEND, half));
        let down = busy(RECV_COPY_SEND, SEND, self.path.busy(RECV, half));
        let up_level = level(RECV_REDUCE_SEND, RECV_REDUCE);
        let down_level = level(RECV_COPY_SEND, SEND);
        let (flow, level) = match operation {
            Operation::Reduce => (up, up_level),
            _ => (down, down_level),
        };
        let rounds = (half / piece).max(1.0);
        self.levels * level + flow * (rounds - 1.0) / rounds
    }

    /// The root exchanges with all ranks in turn.
    fn linear(&self) -> f64 {
        let peers = self.ranks - 1.0;
        let slice = self.path.slice(self.bytes);
        let flow = peers
            * self
                .path
                .busy(SEND, self.bytes)
                .max(self.path.wire(self.bytes));
        flow + self.path.cost.latency_us + self.path.busy(RECV, slice)
    }

    fn one_sided(&self, operation: Operation) -> f64 {
        let LinkCost {
            latency_us,
            overhead_us,
            copy_us_per_byte: copy,
            reduce_us_per_byte: reduce,
            ..
        } = *self.path.cost;
        let peers = self.ranks - 1.0;
        let barrier = 2.0 * peers * overhead_us + latency_us;
        let end = peers * overhead_us + overhead_us + latency_us;
        match operation {
            Operation::AllReduce => 2.0 * barrier + self.bytes * (reduce + copy),
            Operation::ReduceScatter => 2.0 * barrier + self.ranks * self.bytes * reduce,
            Operation::AllGather | Operation::AllToAll => 2.0 * barrier + peers * self.bytes * copy,
            Operation::Reduce => 2.0 * end + self.ranks * self.bytes * reduce,
            Operation::Gather => end + peers * (self.bytes * copy + overhead_us) + latency_us,
            Operation::Broadcast | Operation::Scatter => 2.0 * end + self.bytes * copy,
            // No ranks share their buffers.
            Operation::Barrier
            | Operation::Alloc
            | Operation::AllToAllV
            | Operation::Send
            | Operation::Recv
            | Operation::SendRecv => f64::INFINITY,
        }
    }

    /// The work of the inner ranks and of the last rank in a broadcast or reduction.
    fn relay(operation: Operation) -> (Work, Work) {
        match operation {
            Operation::Reduce => (RECV_REDUCE_SEND, RECV_REDUCE),
            _ => (RECV_COPY_SEND, RECV),
        }
    }

    /// Adds up `round` for every chunk of `bytes`; the last chunk may be shorter.
    fn rounds(&self, bytes: f64, round: impl Fn(f64) -> f64) -> f64 {
        let full = (bytes / self.chunk).floor();
        let rest = bytes - full * self.chunk;
        let last = if rest > 0.0 { round(rest) } else { 0.0 };
        full * round(self.chunk) + last
    }
}
