//! Finds the members that are late, and the members that others wait for.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::{MemberTable, STALE_AFTER};
use crate::fault::{Late, is_in_stream};
use crate::member_record::Operation;
use crate::wire::WaitingFor;

impl MemberTable {
    /// The members that have neither finished `sequence` nor announced within `window` that they
    /// wait in it. Companions are judged by this rank's own records, the others by the reports of
    /// their companions. A member that waits itself is replaced by the member that it waits for, in
    /// turn.
    pub(crate) fn late(&self, sequence: u64, window: Duration, now: Instant) -> Vec<Late> {
        let late = self.absent(sequence, window, now);
        let is_known = |rank: &u32| {
            self.companions.contains(rank)
                || late.iter().any(|late| late.rank.rank == *rank as usize)
        };
        let causes = late.iter();
        let causes = causes.filter_map(|late| self.cause(late.rank.rank as u32, window, now));
        let causes: BTreeSet<u32> = causes.filter(is_known).collect();
        if causes.is_empty() {
            // They wait for each other.
            return late;
        }
        let named = |&rank: &u32| {
            let late = late.iter().find(|late| late.rank.rank == rank as usize);
            late.cloned().or_else(|| self.last_seen(rank, now))
        };
        causes.iter().filter_map(named).collect()
    }

    /// The last of the members that `rank` waits for in turn: `rank` itself, if it does not wait.
    /// `None` if that is not known, or they wait for each other.
    pub(super) fn cause(&self, rank: u32, window: Duration, now: Instant) -> Option<u32> {
        let mut chain = vec![rank];
        let mut last = rank;
        while let Some(waiting) = self.heard.get(last as usize)?.waits_lately(window, now) {
            let WaitingFor::Rank(world) = waiting else {
                return None;
            };
            last = self.view.rank(world).filter(|next| !chain.contains(next))?;
            chain.push(last);
        }
        Some(last).filter(|&last| last != self.me())
    }

    /// The member that `rank` waits for in a message or on its device, the one that this member
    /// waits for, and so on.
    pub(crate) fn awaited_in_turn(&self, rank: u32, now: Instant) -> Vec<u32> {
        let mut chain = vec![self.me(), rank];
        let mut last = rank;
        // Ends where members wait for each other.
        while let Some(next) = self
            .awaited_by(last, now)
            .filter(|next| !chain.contains(next))
        {
            chain.push(next);
            last = next;
        }
        chain.split_off(2)
    }

    /// The member that `rank` waits for in a message or on its device, if that is a companion: the
    /// silence of others means nothing.
    fn awaited_by(&self, rank: u32, now: Instant) -> Option<u32> {
        let (world, _) = self.heard.get(rank as usize)?.awaits_one(now)?;
        let awaited = self.view.rank(world);
        awaited.filter(|awaited| self.companions.contains(awaited))
    }

    /// The member that this one has announced to wait for on its device.
    pub(crate) fn awaited_on_device(&self, now: Instant) -> Option<u32> {
        let (world, sequence) = self.heard.get(self.view.me.rank)?.awaits_one(now)?;
        self.view.rank(world).filter(|_| is_in_stream(sequence))
    }

    /// The members that do not take part in a collective.
    fn absent(&self, sequence: u64, window: Duration, now: Instant) -> Vec<Late> {
        let ranks = (0..).zip(&self.heard);
        let late = ranks.filter(|(_, heard)| !heard.takes_part(sequence, window, now));
        late.filter_map(|(rank, heard)| {
            if self.companions.contains(&rank) {
                return self.last_seen(rank, now);
            }
            let reported = heard.reported(sequence, window.max(STALE_AFTER), now);
            let (last, age) = reported.filter(|_| rank != self.me())?;
            Some(self.named(rank, last, age))
        })
        .collect()
    }

    /// How long ago a member was last heard of, and in which operation it was.
    pub(crate) fn last_seen(&self, rank: u32, now: Instant) -> Option<Late> {
        let heard = self.heard.get(rank as usize)?;
        Some(self.named(rank, heard.last(), heard.age(now)))
    }

    fn named(&self, rank: u32, last: Option<Operation>, age: Option<Duration>) -> Late {
        let describe = self.view.describe;
        Late {
            rank: self.view.member(self.view.members[rank as usize]),
            last: last.map(|last| (last.sequence, describe(last.signature))),
            age,
            needs_thread: false,
        }
    }
}
