//! Closed forms.

use super::LinkCost;
use crate::shape::{Algorithm, Collective, Shape};

/// Microseconds that a collective takes, in place; infinite if there is no such schedule.
///
/// `shape.rank` and `shape.root` do not matter.
pub fn estimate(
    collective: Collective,
    algorithm: Algorithm,
    shape: &Shape,
    bytes_per_element: u64,
    cost: &LinkCost,
) -> f64 {
    if !collective.algorithms().contains(&algorithm) {
        return f64::INFINITY;
    }
    if shape.size < 2 || shape.count == 0 && collective != Collective::Barrier {
        return 0.0;
    }
    let form = Form {
        cost,
        ranks: f64::from(shape.size),
        levels: f64::from(shape.size.next_power_of_two().ilog2()),
        bytes: shape.count as f64 * bytes_per_element as f64,
        chunk: shape.chunk.min(shape.count).max(1) as f64 * bytes_per_element as f64,
    };
    match (collective, algorithm) {
        (Collective::AllReduce, Algorithm::RecursiveDoubling) => {
            form.doubling(shape.size.is_power_of_two())
        }
        (Collective::Barrier, Algorithm::Dissemination) => {
            form.levels * (2.0 * cost.overhead_us + cost.latency_us)
        }
        (_, Algorithm::Ring) => form.ring(collective),
        (_, Algorithm::Direct) => form.direct(collective),
        (_, Algorithm::Chain) => form.chain(collective),
        (_, Algorithm::Binomial) => form.binomial(collective),
        (_, Algorithm::DoubleTree) => form.double_tree(collective),
        (_, Algorithm::Linear) => form.linear(),
        (_, Algorithm::Pairwise) => (form.ranks - 1.0) * form.exchange(form.bytes),
        (_, Algorithm::OneSided) => form.one_sided(collective),
        _ => f64::INFINITY,
    }
}

/// Per-message overheads and passes over the data that a step costs the processor.
#[derive(Clone, Copy)]
struct Work {
    messages: f64,
    copies: f64,
    reductions: f64,
}

const fn work(messages: f64, copies: f64, reductions: f64) -> Work {
    Work {
        messages,
        copies,
        reductions,
    }
}

const SEND: Work = work(1.0, 1.0, 0.0);
const RECV: Work = work(1.0, 1.0, 0.0);
const RECV_REDUCE: Work = work(1.0, 0.0, 1.0);
const RECV_REDUCE_SEND: Work = work(2.0, 0.0, 1.0);
const RECV_REDUCE_COPY_SEND: Work = work(2.0, 1.0, 1.0);
const RECV_COPY_SEND: Work = work(2.0, 2.0, 0.0);

struct Form<'a> {
    cost: &'a LinkCost,
    ranks: f64,
    /// Of a binary tree.
    levels: f64,
    /// Of the shape's count, and of its chunk.
    bytes: f64,
    chunk: f64,
}

impl Form<'_> {
    /// Every step waits for the neighbour's step before, slice by slice.
    fn ring(&self, collective: Collective) -> f64 {
        let inner = self.ranks - 2.0;
        let round = |bytes: f64| {
            let first = self.busy(SEND, bytes);
            first
                + match collective {
                    Collective::AllReduce => {
                        inner * self.stage(RECV_REDUCE_SEND, bytes)
                            + self.stage(RECV_REDUCE_COPY_SEND, bytes)
                            + inner * self.stage(RECV_COPY_SEND, bytes)
                            + self.stage(RECV, bytes)
                    }
                    Collective::AllGather => {
                        inner * self.stage(RECV_COPY_SEND, bytes) + self.stage(RECV, bytes)
                    }
                    _ => {
                        inner * self.stage(RECV_REDUCE_SEND, bytes) + self.stage(RECV_REDUCE, bytes)
                    }
                }
        };
        match collective {
            Collective::AllReduce => self.rounds(self.bytes / self.ranks, round),
            _ => self.rounds(self.bytes, round),
        }
    }

    /// All sends, then all receives, then the reduction.
    fn direct(&self, collective: Collective) -> f64 {
        let peers = self.ranks - 1.0;
        let reduces = collective.reduces();
        self.rounds(self.bytes, |bytes| {
            let send = peers * self.busy(SEND, bytes).max(self.wire(bytes));
            let receive = match (reduces, self.ranks > 2.0) {
                (true, false) => self.busy(RECV_REDUCE, bytes),
                _ => peers * self.busy(RECV, bytes),
            };
            let reduce = if reduces && self.ranks > 2.0 {
                self.ranks * bytes * self.cost.reduce_us_per_byte
            } else {
                0.0
            };
            send + self.cost.latency_us + receive + reduce
        })
    }

    fn doubling(&self, is_power_of_two: bool) -> f64 {
        let (phases, folds) = if is_power_of_two {
            (self.levels, 0.0)
        } else {
            (self.levels - 1.0, 1.0)
        };
        self.rounds(self.bytes, |bytes| {
            let phase = self.hop(SEND, RECV_REDUCE, bytes, false);
            let fold = self.hop(SEND, RECV_REDUCE, bytes, true) + self.hop(SEND, RECV, bytes, true);
            phases * phase + folds * fold
        })
    }

    /// Slices flow through all ranks.
    fn chain(&self, collective: Collective) -> f64 {
        let (inner, last) = Self::relay(collective);
        let slice = self.slice(self.bytes);
        let fill = self.busy(SEND, slice)
            + (self.ranks - 2.0) * self.busy(inner, slice)
            + (self.ranks - 1.0) * (self.wire(slice) + self.cost.latency_us);
        let slowest = if self.ranks > 2.0 { inner } else { last };
        let flow = self
            .busy(slowest, self.bytes)
            .max(self.busy(last, self.bytes));
        fill + flow.max(self.wire(self.bytes))
    }

    /// The root is busy with a child on every level in every round.
    fn binomial(&self, collective: Collective) -> f64 {
        let (_, last) = Self::relay(collective);
        let root = if collective == Collective::Reduce {
            RECV_REDUCE
        } else {
            SEND
        };
        let slice = self.slice(self.chunk);
        let fill = self.levels * (self.wire(slice) + self.cost.latency_us)
            + self.busy(SEND, slice)
            + self.busy(last, slice);
        let flow = self.levels * self.busy(root, self.bytes).max(self.wire(self.bytes));
        fill + flow
    }

    /// Each rank is an inner node for one half of the data and a leaf for the other. Two channels
    /// share the processor and the wire.
    fn double_tree(&self, collective: Collective) -> f64 {
        let half = self.bytes / 2.0;
        let piece = self.chunk.min(half);
        // Two ranks have no inner nodes: one of them has just the other as its child.
        let inner = f64::from(self.ranks > 2.0);
        let busy = |relay: Work, other: Work, ends: f64| {
            let relay = inner * self.busy(relay, half);
            let processor = relay + self.busy(other, half) + ends;
            processor.max(2.0 * (1.0 + inner) * self.wire(half))
        };
        let level = |relay: Work, other: Work| {
            2.0 * (self.busy(relay, self.slice(piece)) + self.busy(other, piece) + self.wire(piece))
                + self.cost.latency_us
        };
        let up = busy(RECV_REDUCE_SEND, RECV_REDUCE, self.busy(SEND, half));
        let down = busy(RECV_COPY_SEND, SEND, self.busy(RECV, half));
        let up_level = level(RECV_REDUCE_SEND, RECV_REDUCE);
        let down_level = level(RECV_COPY_SEND, SEND);
        let (flow, level) = match collective {
            Collective::AllReduce => (up + down, up_level + down_level),
            Collective::Reduce => (up, up_level),
            _ => (down, down_level),
        };
        let rounds = (half / piece).max(1.0);
        self.levels * level + flow * (rounds - 1.0) / rounds
    }

    /// The root is busy with everyone.
    fn linear(&self) -> f64 {
        let peers = self.ranks - 1.0;
        let slice = self.slice(self.bytes);
        let flow = peers * self.busy(SEND, self.bytes).max(self.wire(self.bytes));
        flow + self.cost.latency_us + self.busy(RECV, slice)
    }

    fn one_sided(&self, collective: Collective) -> f64 {
        let LinkCost {
            latency_us,
            overhead_us,
            copy_us_per_byte: copy,
            reduce_us_per_byte: reduce,
            ..
        } = *self.cost;
        let peers = self.ranks - 1.0;
        let meet = 2.0 * peers * overhead_us + latency_us;
        let end = peers * overhead_us + overhead_us + latency_us;
        match collective {
            Collective::AllReduce => 2.0 * meet + self.bytes * (reduce + copy),
            Collective::ReduceScatter => 2.0 * meet + self.ranks * self.bytes * reduce,
            Collective::AllGather | Collective::AllToAll => 2.0 * meet + peers * self.bytes * copy,
            Collective::Reduce => 2.0 * end + self.ranks * self.bytes * reduce,
            Collective::Gather => end + peers * (self.bytes * copy + overhead_us) + latency_us,
            Collective::Broadcast | Collective::Scatter => 2.0 * end + self.bytes * copy,
            Collective::Barrier => f64::INFINITY,
        }
    }

    /// What inner ranks and the last rank of a broadcast or reduction do.
    fn relay(collective: Collective) -> (Work, Work) {
        match collective {
            Collective::Reduce => (RECV_REDUCE_SEND, RECV_REDUCE),
            _ => (RECV_COPY_SEND, RECV),
        }
    }

    /// Both ends of an exchange: send all, and receive.
    fn exchange(&self, bytes: f64) -> f64 {
        let both = self.busy(SEND, bytes) + self.busy(RECV, bytes);
        let slice = self.slice(bytes);
        let ends = self.busy(SEND, slice) + self.busy(RECV, slice);
        both.max(ends + self.wire(bytes) + self.cost.latency_us)
    }

    /// From the start of sending to the end of receiving. If the ranks differ (`apart`), slices
    /// are received while others are sent.
    fn hop(&self, send: Work, receive: Work, bytes: f64, apart: bool) -> f64 {
        let slice = self.slice(bytes);
        let (sent, taken) = (self.busy(send, bytes), self.busy(receive, bytes));
        let wire = self.wire(bytes);
        let start = self.busy(send, slice) + self.wire(slice) + self.cost.latency_us;
        let end = self.busy(receive, slice);
        if apart {
            start + sent.max(taken).max(wire)
        } else {
            (sent + taken).max(start + wire + end - self.wire(slice))
        }
    }

    /// A step of a ring in which everyone does the same.
    fn stage(&self, work: Work, bytes: f64) -> f64 {
        let slice = self.slice(bytes);
        let alone = self.busy(work, slice) + self.wire(slice) + self.cost.latency_us;
        self.busy(work, bytes).max(self.wire(bytes)).max(alone)
    }

    /// Time that the processor needs.
    fn busy(&self, work: Work, bytes: f64) -> f64 {
        let messages = (bytes / self.cost.slice_bytes.max(1) as f64).ceil();
        messages * work.messages * self.cost.overhead_us
            + bytes * work.copies * self.cost.copy_us_per_byte
            + bytes * work.reductions * self.cost.reduce_us_per_byte
    }

    fn wire(&self, bytes: f64) -> f64 {
        bytes * self.cost.wire_us_per_byte
    }

    fn slice(&self, bytes: f64) -> f64 {
        bytes.min(self.cost.slice_bytes.max(1) as f64)
    }

    /// `round` for every chunk of `bytes`, the last of which may be shorter.
    fn rounds(&self, bytes: f64, round: impl Fn(f64) -> f64) -> f64 {
        let full = (bytes / self.chunk).floor();
        let rest = bytes - full * self.chunk;
        let last = if rest > 0.0 { round(rest) } else { 0.0 };
        full * round(self.chunk) + last
    }
}
