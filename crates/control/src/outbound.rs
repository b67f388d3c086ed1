//! The bounded queue of frames that wait to be written to a neighbour. It knows their classes and
//! not their contents, and does no I/O.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use spark_ccl_seal::Sealer;

use crate::record;
use crate::wire::{self, Frame};

/// How many bytes a neighbour may leave unacknowledged before it gets no more notices and
/// heartbeats.
///
/// The kernel of a stopped process acknowledges what arrives only until the receive buffer is full.
/// After that, `TCP_USER_TIMEOUT` would end the connection and the process would count as lost. The
/// credit is small enough that the buffer never fills.
const CREDIT: u64 = 32 * 1024;
/// The number of bytes that are handed to the kernel at a time.
const BATCH: usize = 16 * 1024;
/// The number of notices that are queued; beyond that the oldest is dropped.
const MAX_NOTICES: usize = 4096;
/// The number of frames of [`Class::Bounded`] that are queued for a neighbour that does not read;
/// further ones are dropped.
const MAX_BOUNDED: usize = 4096;

/// The fate of a frame while the neighbour does not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Never dropped: faults, deaths and goodbyes.
    Unbounded,
    /// Dropped if too many are queued: news of ranks that leave a communicator.
    Bounded,
    /// A notice, which a later one on the same subject replaces.
    Replaceable(Subject),
}

/// A notice's subject, sender and receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Subject {
    pub(crate) to: u32,
    pub(crate) origin: u32,
    pub(crate) context: u64,
    pub(crate) about: About,
}

/// A notice's subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum About {
    /// Its sender's own progress.
    Origin,
    /// This rank, which is late.
    Late(u32),
    /// A question how far the receiver is.
    Query,
    /// An answer how far its sender is.
    Answer,
    /// A call of its sender's.
    Claim,
}

/// A queue that never blocks. It is bounded except for [`Class::Unbounded`], whose frames are few.
#[derive(Default)]
pub(crate) struct Outbound {
    /// The batch that is being written, and how many bytes of it have been.
    batch: Vec<u8>,
    written: usize,
    heartbeat: Option<Vec<u8>>,
    /// Frames that no later one replaces.
    reliable: VecDeque<Arc<[u8]>>,
    bounded: usize,
    /// Reliable frames that were written and not yet confirmed; `None` if the stream cannot be
    /// reopened.
    sent: Option<VecDeque<Arc<[u8]>>>,
    /// How many reliable frames the neighbour has confirmed.
    confirmed: u64,
    /// The stream is new, and the neighbour has not yet confirmed what it received on the old one.
    is_held: bool,
    /// In sending order. A replacement goes to the end, since a receiver drops a rank's progress if
    /// it arrives after a later notice of that rank.
    notices: BTreeMap<u64, (Subject, Arc<[u8]>)>,
    /// The position of each subject's notice in that order.
    positions: HashMap<Subject, u64>,
    next_position: u64,
    to_acknowledge: u32,
    unacknowledged: u64,
    /// `None` where the stream stays within the host.
    sealer: Option<Sealer>,
}

impl Outbound {
    /// Keeps reliable frames until the neighbour has confirmed them, from now on.
    pub(crate) fn keep_unconfirmed(&mut self) {
        self.sent.get_or_insert_default();
    }

    /// Seals the batches of the first stream.
    pub(crate) fn seal(&mut self, sealer: Option<Sealer>) {
        self.sealer = sealer;
    }

    /// Goes on with a new stream, on which the neighbour sends a heartbeat first.
    pub(crate) fn restart(&mut self, sealer: Option<Sealer>) {
        self.sealer = sealer;
        self.batch.clear();
        self.written = 0;
        self.unacknowledged = 0;
        self.to_acknowledge = 0;
        self.is_held = true;
    }

    /// Notes that the neighbour has received `received` reliable frames in all.
    pub(crate) fn confirm(&mut self, received: u64) {
        let Some(sent) = &mut self.sent else { return };
        let news = received.saturating_sub(self.confirmed);
        let news = sent.len().min(usize::try_from(news).unwrap_or(usize::MAX));
        sent.drain(..news);
        self.confirmed += news as u64;
        if std::mem::take(&mut self.is_held) {
            while let Some(frame) = sent.pop_back() {
                self.reliable.push_front(frame);
            }
        }
    }

    /// Whether the neighbour has confirmed all reliable frames.
    pub(crate) fn is_confirmed(&self) -> bool {
        let has_unconfirmed = |sent: &VecDeque<_>| !sent.is_empty();
        self.reliable.is_empty()
            && !self.is_held
            && !self.sent.as_ref().is_some_and(has_unconfirmed)
    }

    /// Whether the stream is new and nothing has arrived on it.
    pub(crate) fn is_held(&self) -> bool {
        self.is_held
    }

    /// Queues a heartbeat, in place of one that has not been written yet.
    pub(crate) fn heartbeat(&mut self, heartbeat: Vec<u8>) {
        self.heartbeat = Some(heartbeat);
    }

    pub(crate) fn push(&mut self, class: Class, frame: &Arc<[u8]>) {
        match class {
            Class::Unbounded => self.reliable.push_back(Arc::clone(frame)),
            Class::Bounded => {
                if self.bounded < MAX_BOUNDED {
                    self.bounded += 1;
                    self.reliable.push_back(Arc::clone(frame));
                }
            }
            Class::Replaceable(subject) => {
                let place = self.next_position;
                self.next_position += 1;
                self.notices.insert(place, (subject, Arc::clone(frame)));
                if let Some(before) = self.positions.insert(subject, place) {
                    self.notices.remove(&before);
                }
                if self.notices.len() > MAX_NOTICES {
                    self.pop_notice();
                }
            }
        }
    }

    fn pop_notice(&mut self) -> Option<Arc<[u8]>> {
        let (_, (subject, frame)) = self.notices.pop_first()?;
        self.positions.remove(&subject);
        Some(frame)
    }

    /// Owes the neighbour an acknowledgement of this many more bytes.
    pub(crate) fn acknowledge(&mut self, bytes: u32) {
        self.to_acknowledge = self.to_acknowledge.saturating_add(bytes);
    }

    /// Notes that the neighbour acknowledged this many bytes.
    pub(crate) fn acknowledged(&mut self, bytes: u32) {
        self.unacknowledged = self.unacknowledged.saturating_sub(bytes.into());
    }

    /// The bytes to write next; empty if nothing is queued or the credit is used up.
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
        self.gather();
        if let Some(sealer) = self.sealer.as_mut().filter(|_| !self.batch.is_empty()) {
            self.batch = record::seal(sealer, &self.batch);
        }
    }

    /// Fills the batch with what is due next.
    fn gather(&mut self) {
        if self.to_acknowledge > 0 {
            let bytes = std::mem::take(&mut self.to_acknowledge);
            self.batch.extend(wire::encode(&Frame::Ack { bytes }));
        }
        if let Some(heartbeat) = self
            .heartbeat
            .take()
            .filter(|_| self.unacknowledged < CREDIT)
        {
            self.batch.extend(heartbeat);
        }
        if self.is_held {
            return;
        }
        while self.batch.len() < BATCH {
            let Some(frame) = self.reliable.pop_front() else {
                break;
            };
            self.batch.extend_from_slice(&frame);
            if let Some(sent) = &mut self.sent {
                sent.push_back(frame);
            }
        }
        if self.reliable.is_empty() {
            self.bounded = 0;
        }
        while self.batch.len() < BATCH && self.unacknowledged + (self.batch.len() as u64) < CREDIT {
            let Some(frame) = self.pop_notice() else {
                break;
            };
            self.batch.extend_from_slice(&frame);
        }
    }

    /// Drops all queued notices.
    pub(crate) fn drop_notices(&mut self) {
        self.notices.clear();
        self.positions.clear();
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

    fn subject(origin: u32, context: u64) -> Subject {
        Subject {
            to: 0,
            origin,
            context,
            about: About::Origin,
        }
    }

    fn drain(outbound: &mut Outbound) -> String {
        let mut all = Vec::new();
        loop {
            let next = outbound.next().to_vec();
            if next.is_empty() {
                return String::from_utf8_lossy(&all).into_owned();
            }
            // A few bytes at a time, as a socket that is nearly full takes them.
            let taken = next.len().min(7);
            all.extend(&next[..taken]);
            outbound.wrote(taken);
        }
    }

    #[test]
    fn the_latest_progress_wins_in_its_order_and_other_news_go_first() {
        let mut outbound = Outbound::default();
        let progress = |origin, context| Class::Replaceable(subject(origin, context));
        outbound.push(progress(1, 1), &frame("old "));
        outbound.push(progress(2, 1), &frame("two "));
        outbound.push(Class::Bounded, &frame("leave "));
        outbound.push(progress(1, 1), &frame("one "));
        outbound.push(Class::Unbounded, &frame("fault "));
        assert_eq!(drain(&mut outbound), "leave fault two one ");
        assert_eq!(drain(&mut outbound), "");
    }

    #[test]
    fn a_neighbour_that_does_not_read_costs_bounded_memory_and_still_gets_every_fault() {
        let mut outbound = Outbound::default();
        let text = frame(&"x".repeat(100));
        for origin in 0..10_000 {
            outbound.push(Class::Replaceable(subject(origin, 0)), &text);
            outbound.push(Class::Bounded, &text);
        }
        for _ in 0..10_000 {
            outbound.push(Class::Unbounded, &text);
        }
        assert_eq!(outbound.notices.len(), MAX_NOTICES);
        assert_eq!(outbound.reliable.len(), MAX_BOUNDED + 10_000);
    }

    #[test]
    fn progress_waits_for_credit_and_faults_do_not() {
        let mut outbound = Outbound::default();
        let text = frame(&"x".repeat(1024));
        for origin in 0..100 {
            outbound.push(Class::Replaceable(subject(origin, 0)), &text);
        }
        assert_eq!(drain(&mut outbound).len() as u64, CREDIT);
        outbound.push(Class::Unbounded, &frame("fault"));
        assert_eq!(drain(&mut outbound), "fault");
        outbound.acknowledged(2048);
        assert_eq!(drain(&mut outbound).len(), 2048);
        outbound.acknowledged(u32::MAX);
        assert_eq!(drain(&mut outbound).len() as u64, CREDIT);
    }

    #[test]
    fn a_new_stream_carries_what_the_old_one_lost_and_nothing_twice() {
        let mut outbound = Outbound::default();
        outbound.keep_unconfirmed();
        let push = |outbound: &mut Outbound, text| outbound.push(Class::Unbounded, &frame(text));
        for text in ["a", "b", "c", "d"] {
            push(&mut outbound, text);
        }
        assert_eq!(drain(&mut outbound), "abcd");
        outbound.confirm(1);
        // The stream breaks in the middle of a batch.
        push(&mut outbound, "efgh");
        let half = outbound.next().len() / 2;
        outbound.wrote(half);
        outbound.restart(None);
        push(&mut outbound, "i");
        outbound.heartbeat(b"heartbeat ".to_vec());
        assert_eq!(
            drain(&mut outbound),
            "heartbeat ",
            "the neighbour has not said anything"
        );
        outbound.confirm(3);
        assert_eq!(drain(&mut outbound), "defghi");
        outbound.confirm(6);
        outbound.restart(None);
        outbound.confirm(6);
        assert_eq!(drain(&mut outbound), "");
        outbound.confirm(u64::MAX);
        push(&mut outbound, "j");
        assert_eq!(drain(&mut outbound), "j");
    }
}
