//! The message of a rank that leaves a communicator. It lists the calls that the rank has begun, so
//! that the others know what to expect of it. Knows calls by number and signature only.

use std::collections::BTreeMap;

use crate::device_calls::{DeviceCalls, Messages};
use crate::fault::Fault;

/// The most calls that a leave lists.
pub const MOST_CALLS: usize = 8;

/// How a rank leaves a communicator.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Leave {
    /// The last collective that it has begun; 0 for none.
    pub last_sequence: u64,
    /// Whether a call that it has begun is not done. It does its part in that call, then says again
    /// that it leaves.
    pub is_in_flight: bool,
    /// Collectives that it has called, by number and signature, for the others to compare with
    /// theirs. At most [`MOST_CALLS`] are sent.
    pub calls: Vec<(u64, [u64; 2])>,
    /// By rank: how many messages of host memory it has begun to send and to receive. `None` if it
    /// does not say.
    pub messages: Option<BTreeMap<u32, Messages>>,
    /// The calls of device memory that it has done: see
    /// [`Watch::has_done`](crate::Watch::has_done).
    pub device_calls: DeviceCalls,
    /// [`Fault::Left`], [`Fault::Died`] or [`Fault::Lost`] if its own calls need a rank that has
    /// left or ended, or if it has ended itself. [`Fault::Aborted`] if a panic or the exit of its
    /// process makes it leave.
    pub cause: Option<Fault>,
}

impl Leave {
    /// Leaves after this collective, with nothing in flight.
    pub fn after(last_sequence: u64) -> Self {
        Self {
            last_sequence,
            ..Self::default()
        }
    }

    /// Whether it leaves because its call needs a rank that has ended.
    pub(crate) fn lacks_an_end(&self) -> bool {
        matches!(self.cause, Some(Fault::Died { .. } | Fault::Lost { .. }))
    }

    /// Whether the calls of device memory that `rank` has `made` can complete without a further
    /// call of `peer`, whose leave this is. The calls that `ran` are a prefix.
    ///
    /// A member that has ended, or that leaves because of a departure, does not list its calls. It
    /// is then not needed for the calls that ran.
    pub fn meets(&self, peer: u32, rank: u32, made: &DeviceCalls, ran: &DeviceCalls) -> bool {
        if self.cause.as_ref().is_some_and(Fault::is_departure) {
            return !made.need_more_of(peer, ran);
        }
        made.are_met_by(rank, &self.device_calls, peer)
    }

    /// Whether it has begun to send the message of this number to a rank. `None` if that is not
    /// known.
    pub fn has_sent(&self, to: u32, number: u64) -> Option<bool> {
        self.has_begun(to, |messages| messages.sent >= number)
    }

    /// Whether it has begun to receive the message of this number from a rank. `None` if that is
    /// not known.
    pub fn has_received(&self, from: u32, number: u64) -> Option<bool> {
        self.has_begun(from, |messages| messages.received >= number)
    }

    fn has_begun(&self, peer: u32, enough: impl FnOnce(Messages) -> bool) -> Option<bool> {
        let messages = self.messages.as_ref()?;
        Some(enough(messages.get(&peer).copied().unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_calls::DevicePart;
    use crate::fault::Member;

    #[test]
    fn an_ended_member_is_needed_for_what_has_not_run() {
        let rank = Member::new(2, 2, "rank 2".into());
        let ended = Leave {
            cause: Some(Fault::Died { rank }),
            ..Leave::default()
        };
        let mut made = DeviceCalls::default();
        made.add(DevicePart::Collective);
        let ran = made.clone();
        assert!(!ended.meets(2, 0, &made, &DeviceCalls::default()));
        made.add(DevicePart::ReceiveFrom(1));
        assert!(ended.meets(2, 0, &made, &ran));
        // A member that leaves on its own lists its calls.
        assert!(!Leave::default().meets(2, 0, &made, &ran));
    }
}
