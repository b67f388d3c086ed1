//! Counts a rank's calls of device memory. These are enqueued and run later, so the numbers of
//! collectives of host memory say nothing about them.

use std::collections::BTreeMap;

/// The most peers for which message counts are sent. A rank with more peers says that it has not
/// counted them.
pub(crate) const MOST_PEERS: usize = 64;

/// How many calls of device memory a rank has made in a communicator.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceCalls {
    pub(crate) collectives: u64,
    /// By peer.
    pub(crate) messages: BTreeMap<u32, Messages>,
    /// Whether there may be more: calls in graphs, which the program launches by itself.
    pub(crate) has_uncounted: bool,
}

/// How many messages one rank passes with another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Messages {
    /// Messages that it sends.
    pub sent: u64,
    /// Messages that it receives.
    pub received: u64,
}

/// A rank's part in a call of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DevicePart {
    /// The part of any rank in a collective.
    Collective,
    /// A message to a rank.
    SendTo(u32),
    /// A message from a rank.
    ReceiveFrom(u32),
}

impl DeviceCalls {
    /// Counts one more.
    pub fn add(&mut self, part: DevicePart) {
        match part {
            DevicePart::Collective => self.collectives += 1,
            DevicePart::SendTo(rank) => self.messages.entry(rank).or_default().sent += 1,
            DevicePart::ReceiveFrom(rank) => self.messages.entry(rank).or_default().received += 1,
        }
    }

    /// Notes that there may be more, uncounted calls.
    pub fn add_uncounted(&mut self) {
        self.has_uncounted = true;
    }

    /// Whether these calls need more of `peer` than `earlier` calls, which are a prefix of these.
    pub fn need_more_of(&self, peer: u32, earlier: &Self) -> bool {
        let with = |calls: &Self| calls.messages.get(&peer).copied().unwrap_or_default();
        self.collectives > earlier.collectives || with(self) != with(earlier)
    }

    /// Whether these calls of `rank` can complete without a further call of `peer`. `theirs` are
    /// the known calls of `peer`.
    pub(crate) fn are_met_by(&self, rank: u32, theirs: &Self, peer: u32) -> bool {
        let with = |calls: &Self, rank| calls.messages.get(&rank).copied().unwrap_or_default();
        let (ours, others) = (with(self, peer), with(theirs, rank));
        let are_enough = theirs.collectives >= self.collectives
            && others.received >= ours.sent
            && others.sent >= ours.received;
        theirs.has_uncounted || are_enough
    }
}

#[cfg(test)]
mod tests {
    use super::DevicePart::{Collective, ReceiveFrom, SendTo};
    use super::*;

    fn calls(parts: &[DevicePart]) -> DeviceCalls {
        let mut calls = DeviceCalls::default();
        for &part in parts {
            calls.add(part);
        }
        calls
    }

    #[test]
    fn a_call_needs_as_many_of_its_peers() {
        // Rank 1's calls, and those of rank 2, which has left.
        for (ours, theirs, are_met) in [
            (&[][..], &[][..], true),
            (&[Collective], &[], false),
            (&[Collective], &[Collective], true),
            (&[Collective], &[SendTo(1)], false),
            (&[ReceiveFrom(2)], &[SendTo(1)], true),
            (&[ReceiveFrom(2)], &[SendTo(3)], false),
            (&[ReceiveFrom(2), ReceiveFrom(2)], &[SendTo(1)], false),
            (&[SendTo(2)], &[SendTo(1)], false),
            (&[SendTo(2)], &[ReceiveFrom(1), ReceiveFrom(1)], true),
            // Messages with other ranks do not matter.
            (&[SendTo(3), Collective], &[Collective], true),
        ] {
            let (own, others) = (calls(ours), calls(theirs));
            assert_eq!(
                own.are_met_by(1, &others, 2),
                are_met,
                "{ours:?} {theirs:?}"
            );
        }
        let (own, mut others) = (calls(&[Collective, ReceiveFrom(2)]), calls(&[]));
        others.add_uncounted();
        assert!(own.are_met_by(1, &others, 2));
    }

    #[test]
    fn calls_need_a_peer_for_what_was_added_with_it() {
        let earlier = [Collective, SendTo(2)];
        for (added, needs) in [
            (&[][..], false),
            (&[Collective], true),
            (&[SendTo(2)], true),
            (&[ReceiveFrom(2)], true),
            (&[SendTo(3), ReceiveFrom(3)], false),
        ] {
            let all = calls(&[&earlier[..], added].concat());
            assert_eq!(all.need_more_of(2, &calls(&earlier)), needs, "{added:?}");
        }
    }
}
