//! What waits to be written to a neighbour.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::wire::{self, Frame};

/// How many bytes a neighbour may leave unacknowledged before it gets no more progress.
///
/// A stopped process still has a kernel that acknowledges what arrives, but only until its receive
/// buffer is full; then `TCP_USER_TIMEOUT` would take the process for lost. So little is sent that
/// the buffer never fills.
const CREDIT: u64 = 32 * 1024;
/// How much is handed to the kernel at a time.
const BATCH: usize = 16 * 1024;
/// How many origins and communicators progress is kept of; beyond it the oldest is dropped.
const MAX_PROGRESS: usize = 4096;
/// How many departures wait for a neighbour that does not read; beyond it no more are kept.
const MAX_DEPARTURES: usize = 4096;

/// How a frame is treated while the neighbour does not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Never dropped.
    Fault,
    /// Dropped beyond a bound.
    Departure,
    /// Replaced by later progress of the same origin and context.
    Progress { origin: u32, context: u64 },
}

/// A queue that never blocks and is bounded, but for faults, of which a communicator has few.
#[derive(Default)]
pub(crate) struct Outbound {
    /// The batch that is being written, and how much of it is.
    batch: Vec<u8>,
    written: usize,
    reliable: VecDeque<Arc<[u8]>>,
    departures: usize,
    progress: HashMap<(u32, u64), Arc<[u8]>>,
    progress_order: VecDeque<(u32, u64)>,
    to_acknowledge: u32,
    unacknowledged: u64,
}

impl Outbound {
    pub(crate) fn push(&mut self, class: Class, frame: &Arc<[u8]>) {
        match class {
            Class::Fault => self.reliable.push_back(Arc::clone(frame)),
            Class::Departure => {
                if self.departures < MAX_DEPARTURES {
                    self.departures += 1;
                    self.reliable.push_back(Arc::clone(frame));
                }
            }
            Class::Progress { origin, context } => {
                let key = (origin, context);
                if self.progress.insert(key, Arc::clone(frame)).is_none() {
                    self.progress_order.push_back(key);
                }
                if self.progress_order.len() > MAX_PROGRESS {
                    self.pop_progress();
                }
            }
        }
    }

    fn pop_progress(&mut self) -> Option<Arc<[u8]>> {
        let key = self.progress_order.pop_front()?;
        self.progress.remove(&key)
    }

    /// The neighbour is owed an acknowledgement of so many bytes.
    pub(crate) fn acknowledge(&mut self, bytes: u32) {
        self.to_acknowledge = self.to_acknowledge.saturating_add(bytes);
    }

    /// The neighbour acknowledged so many bytes.
    pub(crate) fn acknowledged(&mut self, bytes: u32) {
        self.unacknowledged = self.unacknowledged.saturating_sub(bytes.into());
    }

    /// The bytes to write next; empty when there is nothing to write or no credit for it.
    pub(crate) fn next(&mut self) -> &[u8] {
        if self.written == self.batch.len() {
            self.fill();
        }
        &self.batch[self.written..]
    }

    pub(crate) fn wrote(&mut self, bytes: usize) {
        self.written += bytes;
        self.unacknowledged += bytes as u64;
    }

    fn fill(&mut self) {
        self.batch.clear();
        self.written = 0;
        if self.to_acknowledge > 0 {
            let bytes = std::mem::take(&mut self.to_acknowledge);
            self.batch.extend(wire::encode(&Frame::Ack { bytes }));
        }
        while self.batch.len() < BATCH {
            let Some(frame) = self.reliable.pop_front() else {
                break;
            };
            self.batch.extend_from_slice(&frame);
        }
        if self.reliable.is_empty() {
            self.departures = 0;
        }
        while self.batch.len() < BATCH && self.unacknowledged + (self.batch.len() as u64) < CREDIT {
            let Some(frame) = self.pop_progress() else {
                break;
            };
            self.batch.extend_from_slice(&frame);
        }
    }

    /// Forgets progress: nobody needs to know any more.
    pub(crate) fn drop_progress(&mut self) {
        self.progress.clear();
        self.progress_order.clear();
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(text: &str) -> Arc<[u8]> {
        text.as_bytes().into()
    }

    fn drain(outbound: &mut Outbound) -> String {
        let mut all = Vec::new();
        loop {
            let next = outbound.next().to_vec();
            if next.is_empty() {
                return String::from_utf8_lossy(&all).into_owned();
            }
            // An odd number at a time, as a socket that is nearly full takes it.
            let taken = next.len().min(7);
            all.extend(&next[..taken]);
            outbound.wrote(taken);
        }
    }

    #[test]
    fn the_latest_progress_wins_and_other_news_go_first() {
        let mut outbound = Outbound::default();
        let progress = |origin, context| Class::Progress { origin, context };
        outbound.push(progress(1, 1), &frame("old "));
        outbound.push(progress(2, 1), &frame("two "));
        outbound.push(Class::Departure, &frame("leave "));
        outbound.push(progress(1, 1), &frame("one "));
        outbound.push(Class::Fault, &frame("fault "));
        assert_eq!(drain(&mut outbound), "leave fault one two ");
        assert_eq!(drain(&mut outbound), "");
    }

    #[test]
    fn a_neighbour_that_does_not_read_costs_bounded_memory_and_still_gets_every_fault() {
        let mut outbound = Outbound::default();
        let text = frame(&"x".repeat(100));
        for origin in 0..10_000 {
            outbound.push(Class::Progress { origin, context: 0 }, &text);
            outbound.push(Class::Departure, &text);
        }
        for _ in 0..10_000 {
            outbound.push(Class::Fault, &text);
        }
        assert_eq!(outbound.progress.len(), MAX_PROGRESS);
        assert_eq!(outbound.reliable.len(), MAX_DEPARTURES + 10_000);
    }

    #[test]
    fn progress_waits_for_credit_and_faults_do_not() {
        let mut outbound = Outbound::default();
        let text = frame(&"x".repeat(1024));
        for origin in 0..100 {
            outbound.push(Class::Progress { origin, context: 0 }, &text);
        }
        assert_eq!(drain(&mut outbound).len() as u64, CREDIT);
        outbound.push(Class::Fault, &frame("fault"));
        assert_eq!(drain(&mut outbound), "fault");
        outbound.acknowledged(2048);
        assert_eq!(drain(&mut outbound).len(), 2048);
        outbound.acknowledged(u32::MAX);
        assert_eq!(drain(&mut outbound).len() as u64, CREDIT);
    }
}
