//! Unread messages of collectives that this rank is done with: their senders have called something
//! else. Knows links and tags; the control plane compares the calls.

use spark_ccl_control::Fault;
use spark_ccl_sched::Rank;

use super::Core;
use super::watchdog::{called, sequence_of};
use super::wires::Wires;
use crate::error::Error;
use crate::mesh::POINT_TO_POINT_LANE;

/// In an uninterrupted run of calls that only send, a rank looks at its links at the first, second,
/// fourth, ... call, and later once in this many calls. Over TCP each look takes a system call for
/// each link.
const LOOK_EVERY: u32 = 1024;

/// A message that no call of this rank will read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unread {
    pub(super) from: Rank,
    /// The number of its collective.
    pub(super) sequence: u64,
}

/// Why a call is not begun.
#[derive(Debug)]
pub(super) enum Refusal {
    Error(Error),
    /// An earlier call differs from another rank's. The ranks find out together what the fault is.
    Unread(Unread),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl Wires {
    /// The first message of a collective up to `last`, on the links of collectives. None of these
    /// links is in the middle of a message.
    fn unread(&mut self, last: u64) -> Option<Unread> {
        self.take_ready();
        for index in 0..self.made().len() {
            let (from, lane) = self.made()[index];
            if lane >= POINT_TO_POINT_LANE {
                continue;
            }
            // A link that has ended is found by the control plane, or by the call that needs it.
            let tag = self.rx(from, lane).ok().and_then(|rx| rx.next_tag().ok()?);
            let sequence = tag.map(|tag| sequence_of(tag, last));
            if let Some(sequence) = sequence.filter(|&sequence| sequence <= last) {
                return Some(Unread { from, sequence });
            }
        }
        None
    }
}

impl Core {
    /// A message of a collective that this rank is done with. Does not look while a collective is
    /// in flight, which itself compares what it receives.
    pub(super) fn unread(&mut self) -> Option<Unread> {
        if self.broken.is_some() || !self.collectives.is_empty() {
            return None;
        }
        self.wires.unread(self.sequence)
    }

    /// Begins a call that only sends, or moves nothing. Other calls compare the tags of what they
    /// receive; before a call of this kind, this rank looks at its links now and then.
    ///
    /// # Errors
    /// The unread message, if it finds one.
    #[inline]
    pub(super) fn begin_unheard(&mut self) -> Result<(), Refusal> {
        self.unheard = self.unheard.wrapping_add(1);
        if !self.unheard.is_power_of_two() && !self.unheard.is_multiple_of(LOOK_EVERY) {
            return Ok(());
        }
        self.unread()
            .map_or(Ok(()), |unread| Err(Refusal::Unread(unread)))
    }

    /// The fault that an unread message stands for, if its sender does not say which operation it
    /// called.
    pub(super) fn unread_fault(&self, unread: Unread) -> Fault {
        let [rank_a, rank_b] = [self.wires.rank, unread.from].map(|rank| self.watch.member(rank));
        Fault::Mismatch {
            sequence: unread.sequence,
            rank_a,
            words_a: called(&self.watch, unread.sequence),
            rank_b,
            words_b: "something else, as data shows that was never read".to_owned(),
        }
    }

    /// The remark on a message that this rank leaves unread.
    pub(crate) fn unread_text(&mut self) -> Option<String> {
        // Ranks that leave name their last call, so the others may know before this one looks.
        if let Some(Error::Failed(fault)) = &self.broken {
            let is_known = matches!(**fault, Fault::Mismatch { .. });
            let known = is_known.then(|| fault.to_string());
            return known.filter(|_| self.wires.unread(self.sequence).is_some());
        }
        let unread = self.unread()?;
        Some(self.unread_fault(unread).to_string())
    }
}
