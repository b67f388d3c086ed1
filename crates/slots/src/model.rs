//! Models of a lane: kernels that fill and read slots, the proxies, and a carrier that copies.
//! Every interleaving, and every value that the memory model lets a load see.

use std::sync::atomic::Ordering;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread::spawn;

use crate::counters::{Receiving, Sending};

/// How many times a thread checks a condition.
const LOOKS: usize = 2;

/// A lane's slots and counters, at each end. loom finds a slot that is written while another thread
/// may read it, or read without a release of what was written.
struct Lane {
    depth: usize,
    outbox: Vec<UnsafeCell<u64>>,
    /// Release in `send` pairs with the acquire of `Sending::next`.
    published: AtomicU64,
    /// Acquire in `send` pairs with the release of `Sending::complete`.
    sent: AtomicU64,
    /// Release in `give_credits` pairs with the acquire of the sender's `credit`.
    credit: AtomicU64,
    inbox: Vec<UnsafeCell<u64>>,
    /// Release in `carry` pairs with the acquire of `receive`.
    flags: Vec<AtomicU64>,
    /// Release in `receive` pairs with the acquire of `Receiving::consumed`.
    consumed: AtomicU64,
}

impl Lane {
    fn new(depth: usize) -> Arc<Self> {
        let cells = || (0..depth).map(|_| UnsafeCell::new(0)).collect();
        Arc::new(Self {
            depth,
            outbox: cells(),
            published: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            credit: AtomicU64::new(0),
            inbox: cells(),
            flags: (0..depth).map(|_| AtomicU64::new(0)).collect(),
            consumed: AtomicU64::new(0),
        })
    }

    /// As `Slots::has_room` and `Slots::publish`.
    fn send(&self, number: u64) -> bool {
        if !looks(|| number <= self.sent.load(Ordering::Acquire) + self.depth as u64) {
            return false;
        }
        // SAFETY: loom gives this closure the slot's pointer only while no other thread has it, and
        // fails the test otherwise.
        self.outbox[self.index(number)].with_mut(|slot| unsafe { *slot = number });
        self.published.store(number, Ordering::Release);
        true
    }

    /// As `Slots::has_come` and `Slots::release`.
    fn receive(&self, number: u64) -> bool {
        if !looks(|| self.flags[self.index(number)].load(Ordering::Acquire) == number) {
            return false;
        }
        // SAFETY: loom gives these closures a slot's pointer only while no thread writes there, and
        // the second one only while no other thread has it, and fails the test otherwise.
        let seen = self.inbox[self.index(number)].with(|slot| unsafe { *slot });
        assert_eq!(seen, number);
        self.consumed.store(number, Ordering::Release);
        true
    }

    /// The sender's proxy and its carrier: post and complete the next slot.
    fn carry(&self, sending: &mut Sending, credit: impl Fn() -> u64) -> bool {
        let mut next = None;
        looks(|| {
            next = sending.next(&self.published, &credit).unwrap();
            next.is_some()
        });
        let Some(number) = next else { return false };
        let index = self.index(number);
        // SAFETY: loom gives these closures a slot's pointer only while no thread writes there, and
        // the second one only while no other thread has it, and fails the test otherwise.
        let copied = self.outbox[index].with(|slot| unsafe { *slot });
        self.inbox[index].with_mut(|slot| unsafe { *slot = copied });
        self.flags[index].store(number, Ordering::Release);
        sending.posted();
        sending.complete(number, &self.sent).unwrap();
        true
    }

    /// The receiver's proxy: gives credits.
    fn give_credits(&self) {
        let mut receiving = Receiving::default();
        for _ in 0..LOOKS {
            let total = Receiving::consumed(&self.consumed);
            if receiving.is_due(total, 1) {
                self.credit.store(total, Ordering::Release);
                receiving.returned(total);
            }
        }
    }

    fn index(&self, number: u64) -> usize {
        number as usize % self.depth
    }
}

/// Whether a condition becomes true within a few looks. If not, the thread gives up: other orders
/// of the threads cover what comes after.
fn looks(is_there: impl FnMut() -> bool) -> bool {
    std::iter::repeat_with(is_there)
        .take(LOOKS)
        .any(|seen| seen)
}

/// The sender's end: a kernel fills slots again while the carrier copies. The peer has consumed all
/// posted slots.
fn send(depth: usize, slots: u64) {
    loom::model(move || {
        let lane = Lane::new(depth);
        let kernel = Arc::clone(&lane);
        let kernel = spawn(move || (1..=slots).all(|number| kernel.send(number)));
        let mut sending = Sending::new(depth);
        let mut posted = 0;
        for _ in 0..slots {
            posted += u64::from(lane.carry(&mut sending, || posted));
        }
        kernel.join().unwrap();
    });
}

/// The receiver's end: the carrier fills slots again that a kernel has consumed and a proxy has
/// given back. Its thread fills the sources, too.
fn receive(depth: usize, slots: u64) {
    loom::model(move || {
        let lane = Lane::new(depth);
        let [kernel, proxy] = [Arc::clone(&lane), Arc::clone(&lane)];
        let kernel = spawn(move || (1..=slots).all(|number| kernel.receive(number)));
        let proxy = spawn(move || proxy.give_credits());
        let mut sending = Sending::new(depth);
        let credit = || lane.credit.load(Ordering::Acquire);
        (1..=slots).all(|number| lane.send(number) && lane.carry(&mut sending, credit));
        kernel.join().unwrap();
        proxy.join().unwrap();
    });
}

#[test]
fn a_source_is_written_again_after_it_was_read() {
    send(1, 2);
    send(2, 3);
}

#[test]
fn a_slot_is_written_again_after_it_was_consumed() {
    receive(1, 2);
}
