//! The last operations of a communicator: the engine writes them, the monitor reads them, without
//! locks.

#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering, fence};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering, fence};

/// The number of operations that are kept. Under loom the ring is small, so that the model covers
/// its wrap-around.
const DEPTH: usize = if cfg!(loom) { 2 } else { 64 };

/// A ring of the last operations' signatures, by sequence number.
///
/// One writer at a time (the engine, behind its own lock), any number of readers, no locks: each
/// slot is a sequence lock. Two writers at once are memory safe, but may lose an entry.
pub(crate) struct History {
    slots: Box<[Slot]>,
    latest: AtomicU64,
}

/// 32 bytes, so that no slot straddles two cache lines.
#[repr(align(32))]
struct Slot {
    /// `2 * sequence` if the slot holds that operation; odd while it is being rewritten.
    stamp: AtomicU64,
    signature: [AtomicU64; 2],
}

impl History {
    pub(crate) fn new() -> Self {
        let slot = |_| Slot {
            stamp: AtomicU64::new(0),
            signature: [AtomicU64::new(0), AtomicU64::new(0)],
        };
        Self {
            slots: (0..DEPTH).map(slot).collect(),
            latest: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(crate) fn record(&self, sequence: u64, signature: [u64; 2]) {
        let slot = self.slot(sequence);
        // Relaxed: the fence below orders it before the signature.
        slot.stamp.store(stamp(sequence) | 1, Ordering::Relaxed);
        // Pairs with the Acquire fence in `get`. A reader that sees any of the new signature sees
        // the odd stamp, or a later one, when it looks at the stamp again.
        fence(Ordering::Release);
        slot.signature[0].store(signature[0], Ordering::Relaxed);
        slot.signature[1].store(signature[1], Ordering::Relaxed);
        // Pairs with the Acquire load in `get`: a reader that sees this stamp sees this signature.
        slot.stamp.store(stamp(sequence), Ordering::Release);
        // Pairs with the Acquire load in `latest`: a reader that sees the number finds the entry.
        self.latest.store(sequence, Ordering::Release);
    }

    /// The signature of operation `sequence`, if it was entered and its slot is not yet
    /// overwritten.
    pub(crate) fn get(&self, sequence: u64) -> Option<[u64; 2]> {
        if sequence == 0 {
            return None;
        }
        let slot = self.slot(sequence);
        // Pairs with the Release store at the end of `record`.
        if slot.stamp.load(Ordering::Acquire) != stamp(sequence) {
            return None;
        }
        let signature = [
            slot.signature[0].load(Ordering::Relaxed),
            slot.signature[1].load(Ordering::Relaxed),
        ];
        // Pairs with the Release fence in `record`.
        fence(Ordering::Acquire);
        (slot.stamp.load(Ordering::Relaxed) == stamp(sequence)).then_some(signature)
    }

    /// The sequence number of the operation entered last; 0 before the first.
    pub(crate) fn latest(&self) -> u64 {
        // Pairs with the Release store of `latest` in `record`.
        self.latest.load(Ordering::Acquire)
    }

    #[inline]
    fn slot(&self, sequence: u64) -> &Slot {
        &self.slots[sequence as usize % DEPTH]
    }
}

fn stamp(sequence: u64) -> u64 {
    sequence << 1
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn remembers_the_last_64() {
        let history = History::new();
        assert_eq!(
            (history.latest(), history.get(0), history.get(1)),
            (0, None, None)
        );
        for sequence in 1..=100 {
            history.record(sequence, [sequence, !sequence]);
        }
        assert_eq!(history.latest(), 100);
        assert_eq!(history.get(36), None);
        assert_eq!(history.get(101), None);
        for sequence in 37..=100 {
            assert_eq!(history.get(sequence), Some([sequence, !sequence]));
        }
    }
}

// Run with `tests/models.sh`.
#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;

    use super::*;

    /// In every interleaving of a reader and a writer that wraps the ring, the reader gets the
    /// whole signature of the operation that it asked for, or nothing.
    #[test]
    fn a_reader_never_sees_a_torn_signature() {
        loom::model(|| {
            let history = Arc::new(History::new());
            history.record(1, [1, 11]);
            let writer = {
                let history = Arc::clone(&history);
                loom::thread::spawn(move || history.record(3, [3, 33]))
            };
            for sequence in [1, 3] {
                if let Some(seen) = history.get(sequence) {
                    assert_eq!(seen, [sequence, sequence * 11]);
                }
            }
            writer.join().unwrap();
            assert_eq!(history.get(3), Some([3, 33]));
            assert_eq!(history.get(1), None);
        });
    }

    /// A reader that sees the number of the latest operation finds it in the ring.
    #[test]
    fn the_latest_operation_can_be_looked_up() {
        loom::model(|| {
            let history = Arc::new(History::new());
            let writer = {
                let history = Arc::clone(&history);
                loom::thread::spawn(move || history.record(1, [1, 11]))
            };
            if history.latest() == 1 {
                assert_eq!(history.get(1), Some([1, 11]));
            }
            writer.join().unwrap();
        });
    }
}
