//! The calls of device memory that a rank has made, as far as ranks compare them. Plain data;
//! `comparison.rs` and `state/claims.rs` compare.

use std::collections::VecDeque;

/// The number of calls that are kept: more than CUDA lets a rank enqueue before it waits for the
/// first.
const KEPT: usize = 4096;
/// An odd number without a pattern: the golden ratio, times 2^64.
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

/// A call, and a digest of what came before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Entry {
    /// Digest of the signatures of this call and all before it, in their order.
    pub(crate) digest: u64,
    pub(crate) signature: [u64; 2],
}

/// The calls of a rank, numbered 1, 2, 3, ...
#[derive(Default)]
pub(crate) struct Ledger {
    /// The last calls.
    kept: VecDeque<Entry>,
    count: u64,
    /// The first call that another rank has claimed, and this one has not made yet.
    claimed: Option<u64>,
}

impl Ledger {
    /// Adds a call. Returns whether another rank has claimed it, or one before it.
    pub(crate) fn add(&mut self, signature: [u64; 2]) -> bool {
        let before = self.kept.back().map_or(0, |entry| entry.digest);
        let digest = signature.iter().fold(before, |digest, word| {
            let mixed = (digest.rotate_left(5) ^ word).wrapping_mul(FACTOR);
            mixed ^ mixed >> 32
        });
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(Entry { digest, signature });
        self.count += 1;
        self.claimed.is_some_and(|claimed| claimed <= self.count)
    }

    /// Takes back the last call, which was not made after all. Ranks that have agreed to it are one
    /// call ahead; a different call is found at the next one.
    pub(crate) fn take_back(&mut self) {
        if self.kept.pop_back().is_some() {
            self.count -= 1;
        }
    }

    /// How many calls there are.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// A call by its number. `None` if it is still to come, or has been forgotten.
    pub(crate) fn get(&self, number: u64) -> Option<Entry> {
        let forgotten = self.count - self.kept.len() as u64;
        let place = number.checked_sub(forgotten + 1)?;
        self.kept.get(usize::try_from(place).ok()?).copied()
    }

    /// Sets the first call still to come that another rank has claimed.
    pub(crate) fn set_claimed(&mut self, claimed: Option<u64>) {
        self.claimed = claimed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(calls: impl IntoIterator<Item = u64>) -> Ledger {
        let mut ledger = Ledger::default();
        for call in calls {
            ledger.add([call, 7]);
        }
        ledger
    }

    fn last(ledger: &Ledger) -> u64 {
        ledger.get(ledger.count()).unwrap().digest
    }

    #[test]
    fn digests_tell_calls_and_their_order() {
        let same = [ledger([1, 2, 3]), ledger([1, 2, 3])];
        assert_eq!(last(&same[0]), last(&same[1]));
        for other in [
            &[1, 3, 2][..],
            &[1, 2],
            &[1, 2, 4],
            &[0, 1, 2, 3],
            &[2, 2, 3],
        ] {
            let other = ledger(other.iter().copied());
            assert_ne!(last(&same[0]), last(&other));
        }
        let mut turned = ledger([1, 2]);
        turned.add([7, 3]);
        assert_ne!(last(&same[0]), last(&turned));
    }

    #[test]
    fn a_call_that_is_taken_back_leaves_no_trace() {
        let (straight, mut again) = (ledger([1, 2, 3]), ledger([1, 2, 5]));
        again.take_back();
        assert_eq!(again.count(), 2);
        again.add([3, 7]);
        assert_eq!(last(&straight), last(&again));
        let mut none = Ledger::default();
        none.take_back();
        assert_eq!(none.count(), 0);
    }

    #[test]
    fn the_last_calls_are_kept() {
        let all = KEPT as u64 + 10;
        let ledger = ledger(1..=all);
        assert_eq!(ledger.count(), all);
        for absent in [0, 10, all + 1, u64::MAX] {
            assert_eq!(ledger.get(absent), None, "{absent}");
        }
        for kept in [11, 500, all] {
            assert_eq!(ledger.get(kept).unwrap().signature, [kept, 7]);
        }
    }

    #[test]
    fn a_claimed_call_is_noticed_when_it_is_made() {
        let mut ledger = ledger([1]);
        ledger.set_claimed(Some(3));
        assert!(!ledger.add([0; 2]));
        assert!(ledger.add([0; 2]));
        ledger.set_claimed(None);
        assert!(!ledger.add([0; 2]));
    }
}
