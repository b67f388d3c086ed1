//! Messages that lie on the links although this rank is done with the collectives that they belong
//! to: their senders have called something else. Knows links and tags; who compares the calls is
//! the control plane.

use spark_ccl_control::Fault;
use spark_ccl_sched::Rank;

use super::Core;
use super::watchdog::{called, sequence_of};
use super::wires::Wires;
use crate::error::Error;
use crate::mesh::POINT_TO_POINT_LANE;

/// In an uninterrupted run of calls in which a rank only sends, it looks at its links at the first,
/// second, fourth, ... of them, and from then on once in this many. Over TCP each look takes a
/// system call for each link.
const LOOK_EVERY: u32 = 1024;

/// A message that no call of this rank will read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unread {
    pub(super) from: Rank,
    /// The collective of which it is.
    pub(super) sequence: u64,
}

/// Why a call is not begun.
#[derive(Debug)]
pub(super) enum Refusal {
    Error(Error),
    /// An earlier call was not what another rank has called. What the fault is, the ranks find out
    /// together.
    Unread(Unread),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl Wires {
    /// The first message of a collective up to this one, on the links of collectives. None of these
    /// is in the middle of a message.
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
    /// A message of a collective with which this rank is done. Looks for none while one is in
    /// flight, which compares what it receives by itself.
    pub(super) fn unread(&mut self) -> Option<Unread> {
        if self.broken.is_some() || !self.collectives.is_empty() {
            return None;
        }
        self.wires.unread(self.sequence)
    }

    /// Begins a call that only sends, or moves nothing. Others compare the tags of what they
    /// receive; before one of these, this rank looks now and then at what has come.
    ///
    /// # Errors
    /// With the message that it finds.
    #[inline]
    pub(super) fn begin_unheard(&mut self) -> Result<(), Refusal> {
        self.unheard = self.unheard.wrapping_add(1);
        if !self.unheard.is_power_of_two() && !self.unheard.is_multiple_of(LOOK_EVERY) {
            return Ok(());
        }
        self.unread()
            .map_or(Ok(()), |unread| Err(Refusal::Unread(unread)))
    }

    /// The fault that an unread message amounts to, if its sender does not say what it has called.
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

    /// What to say of a message that this rank leaves unread.
    pub(crate) fn unread_text(&mut self) -> Option<String> {
        let unread = self.unread()?;
        Some(self.unread_fault(unread).to_string())
    }
}
