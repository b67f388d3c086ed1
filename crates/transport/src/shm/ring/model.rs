//! Model check of every interleaving of the two sides of a small ring that the memory model allows.
//!
//! Run with `tests/models.sh`.

use std::sync::atomic::Ordering;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;

use super::{Cell, Consumer, Producer, Word, Words, close, has_returned, was_lent};
use crate::LinkError;

impl Word for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }
}

/// The words, and cells and slots for which loom detects concurrent access by both sides. Every
/// second message needs a slot.
struct Ring {
    filled: Vec<AtomicU64>,
    cells: Vec<UnsafeCell<u64>>,
    slots: Vec<UnsafeCell<u64>>,
    released: AtomicU64,
    sender_closed: AtomicU64,
    receiver_closed: AtomicU64,
}

impl Words for Ring {
    type Word = AtomicU64;

    fn filled(&self, cell: Cell) -> &AtomicU64 {
        &self.filled[cell.index()]
    }

    fn released(&self) -> &AtomicU64 {
        &self.released
    }

    fn sender_closed(&self) -> &AtomicU64 {
        &self.sender_closed
    }

    fn receiver_closed(&self) -> &AtomicU64 {
        &self.receiver_closed
    }
}

impl Ring {
    /// How many messages may be in flight, including this one.
    fn depth(&self, number: u64) -> usize {
        if number % 2 == 0 {
            self.slots.len()
        } else {
            self.cells.len()
        }
    }

    /// Where the payload of this message is: in this cell or in its slot.
    fn place(&self, number: u64, cell: Cell) -> &UnsafeCell<u64> {
        if number % 2 == 0 {
            &self.slots[cell.index() % self.slots.len()]
        } else {
            &self.cells[cell.index()]
        }
    }
}

fn ring(slots: usize, cells_per_slot: usize) -> Arc<Ring> {
    let cells = slots * cells_per_slot;
    Arc::new(Ring {
        filled: (0..cells).map(|_| AtomicU64::new(0)).collect(),
        cells: (0..cells).map(|_| UnsafeCell::new(0)).collect(),
        slots: (0..slots).map(|_| UnsafeCell::new(0)).collect(),
        released: AtomicU64::new(0),
        sender_closed: AtomicU64::new(0),
        receiver_closed: AtomicU64::new(0),
    })
}

/// Sends the numbers 1 to `count`, or fewer if the receiver closes before.
fn send_all(ring: &Ring, count: u64) {
    let mut producer = Producer::new(ring.cells.len());
    for number in 1..=count {
        let cell = loop {
            match producer.poll(ring, ring.depth(number)) {
                Ok(Some(cell)) => break cell,
                Ok(None) => thread::yield_now(),
                Err(LinkError::Closed) => return,
                Err(error) => panic!("{error}"),
            }
        };
        // SAFETY: the pointer is valid during the closure, and loom fails the test if the receiver
        // accesses the payload at the same time.
        ring.place(number, cell)
            .with_mut(|payload| unsafe { *payload = number });
        producer.publish(ring);
    }
    close(&ring.sender_closed);
}

/// Receives until the end, or `most` messages. Returns how many it received.
fn receive_all(ring: &Ring, most: u64) -> u64 {
    let mut consumer = Consumer::new(ring.cells.len());
    let mut received = 0;
    while received < most {
        match consumer.poll(ring) {
            Ok(Some(cell)) => {
                received += 1;
                let place = ring.place(received, cell);
                // SAFETY: the pointer is valid during the closure, and loom fails the test if the
                // sender writes the payload at the same time.
                let payload = place.with(|payload| unsafe { *payload });
                assert_eq!(payload, received);
                consumer.release(ring);
            }
            Ok(None) => thread::yield_now(),
            Err(LinkError::Closed) => return received,
            Err(error) => panic!("{error}"),
        }
    }
    close(&ring.receiver_closed);
    received
}

fn all_arrive(slots: usize, cells_per_slot: usize, count: u64) {
    loom::model(move || {
        let ring = ring(slots, cells_per_slot);
        let sender = thread::spawn({
            let ring = Arc::clone(&ring);
            move || send_all(&ring, count)
        });
        assert_eq!(receive_all(&ring, u64::MAX), count);
        sender.join().unwrap();
    });
}

#[test]
fn messages_arrive_whole_and_once_before_the_end_is_seen() {
    all_arrive(1, 1, 3);
    all_arrive(1, 2, 3);
    all_arrive(2, 1, 3);
    all_arrive(3, 1, 2);
}

#[test]
fn the_sender_ends_when_the_receiver_leaves() {
    loom::model(|| {
        let ring = ring(1, 1);
        let sender = thread::spawn({
            let ring = Arc::clone(&ring);
            move || send_all(&ring, 3)
        });
        assert_eq!(receive_all(&ring, 1), 1);
        sender.join().unwrap();
    });
}

/// Publishes a message that announces a loan. Returns its number.
fn lend(ring: &Ring) -> u64 {
    let mut producer = Producer::new(1);
    assert!(producer.poll(ring, 1).unwrap().is_some());
    producer.publish(ring)
}

/// Waits until the loan has returned.
fn await_return(ring: &Ring, number: u64) {
    while !has_returned(ring, number).unwrap() {
        thread::yield_now();
    }
}

/// Waits for the message that announces a loan.
fn await_loan(ring: &Ring) -> Consumer {
    let mut consumer = Consumer::new(1);
    while consumer.poll(ring).unwrap().is_none() {
        thread::yield_now();
    }
    consumer
}

#[test]
fn lent_memory_is_not_read_any_more_once_it_has_returned() {
    loom::model(|| {
        let (ring, lent) = (ring(1, 1), Arc::new(UnsafeCell::new(1)));
        let receiver = thread::spawn({
            let (ring, lent) = (Arc::clone(&ring), Arc::clone(&lent));
            move || {
                let mut consumer = await_loan(&ring);
                // SAFETY: the pointer is valid during the closure, and loom fails the test if the
                // sender, having it back, writes at the same time.
                assert_eq!(lent.with(|lent| unsafe { *lent }), 1);
                consumer.release(&*ring);
            }
        });
        await_return(&ring, lend(&ring));
        // SAFETY: the pointer is valid during the closure, and loom fails the test if the receiver
        // still reads at the same time.
        lent.with_mut(|lent| unsafe { *lent = 2 });
        receiver.join().unwrap();
    });
}

#[test]
fn what_a_receiver_returns_before_it_leaves_has_returned() {
    loom::model(|| {
        let ring = ring(1, 1);
        let receiver = thread::spawn({
            let ring = Arc::clone(&ring);
            move || {
                await_loan(&ring).release(&*ring);
                close(&ring.receiver_closed);
            }
        });
        await_return(&ring, lend(&ring));
        receiver.join().unwrap();
    });
}

#[test]
fn what_is_written_after_the_sender_closed_is_never_taken_for_what_was_lent() {
    loom::model(|| {
        // An atomic, because the kernel (or the receiver itself, if the memory is registered) may
        // read it while the sender writes.
        let (ring, lent) = (ring(1, 1), Arc::new(AtomicU64::new(1)));
        let receiver = thread::spawn({
            let (ring, lent) = (Arc::clone(&ring), Arc::clone(&lent));
            move || {
                if Consumer::new(1)
                    .poll(&*ring)
                    .is_ok_and(|slot| slot.is_some())
                {
                    let read = lent.load(Ordering::Relaxed);
                    assert!(read == 1 || !was_lent(&ring.sender_closed));
                }
            }
        });
        lend(&ring);
        close(&ring.sender_closed);
        lent.store(2, Ordering::Relaxed);
        receiver.join().unwrap();
    });
}
