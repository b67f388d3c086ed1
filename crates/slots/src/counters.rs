//! The counters of a lane, as the proxy keeps them. They never restart.
//!
//! Pairings; the kernel's ends are in `kernels/slots.h`:
//! - `Published`: the kernel's fence in `Slots::tell`, Acquire in [`Sending::next`]: a
//!   proxy that sees the number sees the slot.
//! - `Sent`: Release in [`Sending::complete`], the kernel's `acquire_long` in `Slots::has_room`: a
//!   kernel that fills a slot again does so after all reads of it.
//! - a slot's flag: Release in `PostBox::set_flag`, the kernel's `acquire_long` in
//!   `Slots::has_come`.
//! - `Consumed`: the kernel's fence in `Slots::tell`, Acquire in [`Receiving::consumed`]: a credit
//!   is given after all reads of the slot.
//! - `Credit`: by the carrier, with Release and Acquire in memory that both reach: a slot is
//!   written again after it was consumed.

#[cfg(not(all(test, loom)))]
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

#[cfg(all(test, loom))]
use loom::sync::atomic::AtomicU64;

use crate::slot::Counter;

/// A counter with a value that it cannot have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Impossible {
    pub(crate) counter: Counter,
    pub(crate) seen: u64,
    pub(crate) least: u64,
    pub(crate) most: u64,
}

impl Impossible {
    fn check(counter: Counter, seen: u64, least: u64, most: u64) -> Result<u64, Self> {
        if (least..=most).contains(&seen) {
            return Ok(seen);
        }
        Err(Self {
            counter,
            seen,
            least,
            most,
        })
    }
}

/// The sender's end of a lane.
#[derive(Debug)]
pub(crate) struct Sending {
    depth: u64,
    published: u64,
    posted: u64,
    /// All slots up to this one have completed.
    sent: u64,
    /// Which later slots have completed, too: bit i stands for slot `sent + 1 + i`.
    completed: u64,
    /// The largest number of consumed slots that the peer has told.
    credit: u64,
}

impl Sending {
    pub(crate) fn new(depth: usize) -> Self {
        Self {
            depth: depth as u64,
            published: 0,
            posted: 0,
            sent: 0,
            completed: 0,
            credit: 0,
        }
    }

    /// The next slot to post: one that is published, and whose place at the peer is free.
    pub(crate) fn next(
        &mut self,
        published: &AtomicU64,
        credit: impl FnOnce() -> u64,
    ) -> Result<Option<u64>, Impossible> {
        if self.posted == self.published {
            // Acquire pairs with the kernel's fence in `Slots::tell`.
            let seen = published.load(Ordering::Acquire);
            let most = self.sent + self.depth;
            self.published = Impossible::check(Counter::Published, seen, self.published, most)?;
            if self.posted == self.published {
                self.hear_last(credit)?;
                return Ok(None);
            }
        }
        let number = self.posted + 1;
        self.hear(number.saturating_sub(self.depth), credit)?;
        let has_room = number - self.credit <= self.depth;
        Ok(has_room.then_some(number))
    }

    /// Looks for credits, unless all posted slots are known to be consumed.
    pub(crate) fn hear_last(&mut self, credit: impl FnOnce() -> u64) -> Result<(), Impossible> {
        self.hear(self.posted, credit)
    }

    /// Looks for credits, if fewer than `needed` slots are known to be consumed.
    fn hear(&mut self, needed: u64, credit: impl FnOnce() -> u64) -> Result<(), Impossible> {
        if self.credit < needed {
            // A later total may overtake an earlier one, so the largest that was seen counts.
            let seen = Impossible::check(Counter::Credit, credit(), 0, self.posted)?;
            self.credit = self.credit.max(seen);
        }
        Ok(())
    }

    /// Notes that the slot that [`next`](Self::next) has returned was posted.
    pub(crate) fn posted(&mut self) {
        self.posted += 1;
    }

    /// Notes that a posted slot has completed. Once all slots before it have, too, the kernel may
    /// fill it again.
    pub(crate) fn complete(&mut self, number: u64, sent: &AtomicU64) -> Result<(), Impossible> {
        Impossible::check(Counter::Sent, number, self.sent + 1, self.posted)?;
        self.completed |= 1 << (number - self.sent - 1);
        let done = self.completed.trailing_ones();
        if done > 0 {
            self.sent += u64::from(done);
            self.completed = self.completed.checked_shr(done).unwrap_or(0);
            // Release pairs with the kernel's acquire in `Slots::has_room`.
            sent.store(self.sent, Ordering::Release);
        }
        Ok(())
    }

    pub(crate) fn totals(&self) -> [u64; 4] {
        [self.published, self.posted, self.sent, self.credit]
    }
}

/// The receiver's end of a lane.
#[derive(Debug, Default)]
pub(crate) struct Receiving {
    returned: u64,
}

impl Receiving {
    /// Whether a credit is to be given that exceeds the last one by at least `least` slots.
    pub(crate) fn is_due(&self, consumed: u64, least: u64) -> bool {
        consumed >= self.returned + least
    }

    /// How many slots the kernel has consumed.
    pub(crate) fn consumed(consumed: &AtomicU64) -> u64 {
        // Acquire pairs with the kernel's fence in `Slots::tell`.
        consumed.load(Ordering::Acquire)
    }

    pub(crate) fn returned(&mut self, total: u64) {
        self.returned = total;
    }

    pub(crate) fn total(&self) -> u64 {
        self.returned
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const DEPTH: usize = 3;

    fn next(lane: &mut Sending, published: u64, credit: u64) -> Result<Option<u64>, Impossible> {
        lane.next(&AtomicU64::new(published), || credit)
    }

    /// Posts a slot, and completes it.
    fn pass(lane: &mut Sending, sent: &AtomicU64) {
        lane.posted();
        let number = lane.posted;
        lane.complete(number, sent).unwrap();
    }

    #[test]
    fn a_slot_is_posted_once_it_is_published_and_has_room_at_the_peer() {
        let (mut lane, sent) = (Sending::new(DEPTH), AtomicU64::new(0));
        assert_eq!(next(&mut lane, 0, 0), Ok(None));
        for number in 1..=3 {
            assert_eq!(next(&mut lane, 3, 0), Ok(Some(number)));
            pass(&mut lane, &sent);
        }
        assert_eq!(next(&mut lane, 4, 0), Ok(None));
        assert_eq!(next(&mut lane, 4, 1), Ok(Some(4)));
    }

    #[test]
    fn a_credit_that_comes_late_takes_nothing_back() {
        let (mut lane, sent) = (Sending::new(1), AtomicU64::new(0));
        for number in 1..=3 {
            assert_eq!(next(&mut lane, number, number - 1), Ok(Some(number)));
            pass(&mut lane, &sent);
        }
        assert_eq!(next(&mut lane, 4, 1), Ok(None));
        // The largest credit that was seen stays.
        assert_eq!(lane.totals()[3], 2);
        assert_eq!(next(&mut lane, 4, 3), Ok(Some(4)));
    }

    /// The last credit is heard, too, also if no slot waits for it.
    #[test]
    fn the_last_credit_is_heard() {
        let (mut lane, sent) = (Sending::new(DEPTH), AtomicU64::new(0));
        next(&mut lane, 1, 0).unwrap();
        pass(&mut lane, &sent);
        assert_eq!(next(&mut lane, 1, 1), Ok(None));
        assert_eq!(lane.totals()[3], 1);
    }

    #[test]
    fn a_credit_frees_no_source_and_a_late_write_holds_those_behind_it() {
        let (mut lane, sent) = (Sending::new(DEPTH), AtomicU64::new(0));
        for _ in 0..3 {
            next(&mut lane, 3, 3).unwrap();
            lane.posted();
        }
        lane.complete(2, &sent).unwrap();
        lane.complete(3, &sent).unwrap();
        assert_eq!(sent.load(Ordering::Relaxed), 0);
        lane.complete(1, &sent).unwrap();
        assert_eq!(sent.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn all_slots_of_the_deepest_lane_may_complete_backwards() {
        let depth = crate::MAX_DEPTH;
        let (mut lane, sent) = (Sending::new(depth), AtomicU64::new(0));
        for _ in 0..depth {
            next(&mut lane, depth as u64, 0).unwrap();
            lane.posted();
        }
        for number in (1..=depth as u64).rev() {
            lane.complete(number, &sent).unwrap();
        }
        assert_eq!(sent.load(Ordering::Relaxed), depth as u64);
    }

    #[test]
    fn counters_that_cannot_be_are_found() {
        let mut lane = Sending::new(DEPTH);
        let said = next(&mut lane, 9, 0).unwrap_err();
        assert_eq!(
            (said.counter, said.seen, said.most),
            (Counter::Published, 9, 3)
        );
        let (mut lane, sent) = (Sending::new(1), AtomicU64::new(0));
        next(&mut lane, 1, 0).unwrap();
        pass(&mut lane, &sent);
        let said = next(&mut lane, 2, 7).unwrap_err();
        assert_eq!(
            (said.counter, said.seen, said.most),
            (Counter::Credit, 7, 1)
        );
        // The slot has completed before.
        let said = lane.complete(1, &sent).unwrap_err();
        assert_eq!((said.counter, said.seen), (Counter::Sent, 1));
    }

    #[test]
    fn a_credit_is_due_once() {
        let mut lane = Receiving::default();
        assert!(!lane.is_due(2, 3));
        assert!(lane.is_due(2, 2));
        lane.returned(2);
        assert!(!lane.is_due(2, 1));
    }
}
