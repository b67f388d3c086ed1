//! The cost of reading the peer's memory, compared with two copies through a slot.
//!
//! The kernel looks up every page that it reads for another process. On some machines, virtual ones
//! above all, that takes several times as long as the copy.

use std::hint::black_box;
use std::time::{Duration, Instant};

use once_cell::race::OnceBool;

use super::beacon;
use super::reach::Reach;

/// The bytes that are timed: they fit into caches, and the system call itself hardly counts.
const BYTES: usize = 64 << 10;
/// Whatever disturbs a try makes it longer, so the shortest counts.
const TRIES: usize = 8;
/// A read may take less than this many times as long as the copies. These are timed on one core.
/// Between two cores, the slot's cache lines must also move, which takes longest if the cores share
/// no cache. Where a read takes three times as long as the copies, an `all_gather` through slots
/// takes 0.7 to 1.1 times as long as by reads between near cores, and 1.8 to 3.4 times between far
/// ones.
const WORTH: u32 = 4;

/// Whether long messages take less time if their receivers read them straight out of the senders'
/// memory. Measured once per process, which takes less than a millisecond.
pub fn single_copies_pay() -> bool {
    // Threads that come first together all measure. None waits for another, as a forked child would
    // for ever.
    static PAY: OnceBool = OnceBool::new();
    PAY.get_or_init(measure)
}

/// Reads this process's own memory as a peer would.
fn measure() -> bool {
    let Some(reach) = beacon::spot().map(Reach::new) else {
        return false;
    };
    // All begin at the same place of a page, so no copy is slow because of its addresses.
    let mut memory = vec![1_u8; 3 * BYTES];
    let (source, rest) = memory.split_at_mut(BYTES);
    let (slot, target) = rest.split_at_mut(BYTES);
    let address = source.as_ptr() as u64;
    let read = shortest(|| reach.read(address, target).is_ok());
    let copied = shortest(|| {
        slot.copy_from_slice(black_box(source));
        target.copy_from_slice(black_box(slot));
        black_box(&*target).last() == Some(&1)
    });
    let pays = read
        .zip(copied)
        .is_some_and(|(read, copied)| read < WORTH * copied);
    spark_ccl_log::debug!(
        "64 KiB take {read:?} to read and {copied:?} through a slot: single copies {}",
        if pays { "pay" } else { "do not pay" }
    );
    pays
}

/// The shortest of several tries; `None` if one fails.
fn shortest(mut work: impl FnMut() -> bool) -> Option<Duration> {
    let mut shortest = Duration::MAX;
    for _ in 0..TRIES {
        let start = Instant::now();
        if !work() {
            return None;
        }
        shortest = shortest.min(start.elapsed());
    }
    Some(shortest)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_not_timed_and_an_answer_stays() {
        assert_eq!(shortest(|| false), None);
        let mut calls = 0;
        assert!(
            shortest(|| {
                calls += 1;
                true
            })
            .is_some()
        );
        assert_eq!(calls, TRIES);
        let first = single_copies_pay();
        assert!((0..100).all(|_| single_copies_pay() == first));
    }
}
