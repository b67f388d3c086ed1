//! Model check of every interleaving of an end that blocks and one that sends.
//!
//! Loom has no barrier on all cores. It is modelled as a fence on each side. The barrier acts as a
//! full fence between two instructions of the other core; to an end that does not see the other's
//! store, it guarantees that this fence is between the other's store and load.
//!
//! Run with `tests/models.sh`.

use std::sync::atomic::Ordering;

use loom::sync::atomic::{AtomicU64, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::{arm, disarm, ring_if_asleep};

/// The words of a link with one message after the other, and the sleeper's bell.
#[derive(Default)]
struct Link {
    asleep: AtomicU64,
    sent: AtomicU64,
    rings: Mutex<u64>,
    rung: Condvar,
}

impl Link {
    /// A lost ring is a deadlock, which loom reports.
    fn block(&self) {
        let mut rings = self.rings.lock().unwrap();
        while *rings == 0 {
            rings = self.rung.wait(rings).unwrap();
        }
        *rings = 0;
    }

    fn ring(&self) {
        *self.rings.lock().unwrap() += 1;
        self.rung.notify_one();
    }

    fn send(&self, number: u64) {
        self.sent.store(number, Ordering::Release);
        ring_if_asleep(&self.asleep, || self.ring());
    }

    /// Waits for a message as the engine does: arm, barrier, check, block.
    fn await_message(&self, number: u64) {
        let has_come = || self.sent.load(Ordering::Acquire) >= number;
        while !has_come() {
            arm(&self.asleep);
            fence(Ordering::SeqCst);
            if !has_come() {
                self.block();
            }
            disarm(&self.asleep);
        }
    }
}

fn all_wake_up(messages: u64, model: &loom::model::Builder) {
    model.check(move || {
        let link = Arc::new(Link::default());
        let sender = thread::spawn({
            let link = Arc::clone(&link);
            move || (1..=messages).for_each(|number| link.send(number))
        });
        (1..=messages).for_each(|number| link.await_message(number));
        sender.join().unwrap();
    });
}

#[test]
fn who_blocks_for_a_message_is_woken_up() {
    all_wake_up(1, &loom::model::Builder::new());
}

#[test]
fn who_blocks_again_is_woken_up_again() {
    // There are too many interleavings to check all of them.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    all_wake_up(2, &model);
}
