//! The cost of messages and steps on a path.

use super::super::LinkCost;

/// The overheads per message, and the passes over the data, that a step costs the processor.
#[derive(Clone, Copy)]
pub(super) struct Work {
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

pub(super) const SEND: Work = work(1.0, 1.0, 0.0);
pub(super) const RECV: Work = work(1.0, 1.0, 0.0);
pub(super) const RECV_REDUCE: Work = work(1.0, 0.0, 1.0);
pub(super) const RECV_REDUCE_SEND: Work = work(2.0, 0.0, 1.0);
pub(super) const RECV_REDUCE_COPY_SEND: Work = work(2.0, 1.0, 1.0);
pub(super) const RECV_COPY_SEND: Work = work(2.0, 2.0, 0.0);

/// A path that messages take.
#[derive(Clone, Copy)]
pub(super) struct Path<'a> {
    pub(super) cost: &'a LinkCost,
    /// The number of messages that share the busiest port of the path; and the number of hops.
    pub(super) sharing: f64,
    pub(super) hops: f64,
}

impl<'a> Path<'a> {
    pub(super) fn new(cost: &'a LinkCost) -> Self {
        Self {
            cost,
            sharing: 1.0,
            hops: 1.0,
        }
    }

    /// Both ends of an exchange: sends all, and receives.
    pub(super) fn exchange(&self, bytes: f64) -> f64 {
        let both = self.busy(SEND, bytes) + self.busy(RECV, bytes);
        let slice = self.slice(bytes);
        let ends = self.busy(SEND, slice) + self.busy(RECV, slice);
        both.max(ends + self.wire(bytes) + self.latency())
    }

    /// The time from the start of sending to the end of receiving. If only one of the ranks sends
    /// (`one_way`), the other receives slices while later ones are sent; otherwise each rank does
    /// both.
    pub(super) fn hop(&self, send: Work, receive: Work, bytes: f64, one_way: bool) -> f64 {
        let slice = self.slice(bytes);
        let (sent, taken) = (self.busy(send, bytes), self.busy(receive, bytes));
        let wire = self.wire(bytes);
        let start = self.busy(send, slice) + self.wire(slice) + self.latency();
        let end = self.busy(receive, slice);
        if one_way {
            start + sent.max(taken).max(wire)
        } else {
            (sent + taken).max(start + wire + end - self.wire(slice))
        }
    }

    /// The time of a ring's step, if all ranks do the same.
    pub(super) fn stage(&self, work: Work, bytes: f64) -> f64 {
        let shared = self.wire(bytes);
        self.busy(work, bytes)
            .max(shared)
            .max(self.slice_time(work, bytes))
    }

    /// The time from when a slice is ready at one rank to when it is ready at the next. In a ring,
    /// messages that share a port come to alternate, so none waits for another.
    pub(super) fn slice_time(&self, work: Work, bytes: f64) -> f64 {
        let slice = self.slice(bytes);
        self.busy(work, slice) + self.wire(slice) / self.sharing + self.latency()
    }

    /// The time that the processor needs.
    pub(super) fn busy(&self, work: Work, bytes: f64) -> f64 {
        let messages = (bytes / self.slice_bytes()).ceil();
        messages * work.messages * self.cost.overhead_us
            + bytes * work.copies * self.cost.copy_us_per_byte
            + bytes * work.reductions * self.cost.reduce_us_per_byte
    }

    pub(super) fn wire(&self, bytes: f64) -> f64 {
        bytes * self.cost.wire_us_per_byte * self.sharing
    }

    pub(super) fn slice(&self, bytes: f64) -> f64 {
        bytes.min(self.slice_bytes())
    }

    fn slice_bytes(&self) -> f64 {
        self.cost.slice_bytes.max(1) as f64
    }

    pub(super) fn latency(&self) -> f64 {
        self.hops * self.cost.latency_us
    }
}
