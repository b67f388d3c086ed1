//! For which rank a rank waits, where that is one alone: in a message, or on its device.

use std::time::Instant;

use super::MemberTable;
use crate::fault::is_on_device;

impl MemberTable {
    /// The member that `rank` waits for in a message or on its device, the one that this member
    /// waits for, and so on.
    pub(crate) fn awaited_in_turn(&self, rank: u32, now: Instant) -> Vec<u32> {
        let mut chain = vec![self.me(), rank];
        let mut last = rank;
        // Ends where some wait for each other.
        while let Some(next) = self
            .awaited_by(last, now)
            .filter(|next| !chain.contains(next))
        {
            chain.push(next);
            last = next;
        }
        chain.split_off(2)
    }

    /// The member that `rank` so waits for, if it is a companion: the silence of others means
    /// nothing.
    fn awaited_by(&self, rank: u32, now: Instant) -> Option<u32> {
        let (world, _) = self.heard.get(rank as usize)?.awaits_one(now)?;
        let awaited = self.view.rank(world);
        awaited.filter(|awaited| self.companions.contains(awaited))
    }

    /// The member that this one waits for on its device, as it has announced.
    pub(crate) fn awaited_on_device(&self, now: Instant) -> Option<u32> {
        let (world, sequence) = self.heard.get(self.view.me.rank)?.awaits_one(now)?;
        self.view.rank(world).filter(|_| is_on_device(sequence))
    }
}
