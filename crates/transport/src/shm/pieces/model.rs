//! Model check of every interleaving of a receiver that asks for pieces with the sender that
//! provides them.
//!
//! Run with `tests/models.sh`.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;

use super::super::ring::{Cell, Words as RingWords, close};
use super::{Piece, Words, ask, asked, give, has_come};
use crate::LinkError;

/// The words for pieces, and a body for which loom detects concurrent access by both sides.
#[derive(Default)]
struct Ring {
    wanted: AtomicU64,
    given: AtomicU64,
    sender_closed: AtomicU64,
    body: UnsafeCell<u64>,
}

impl RingWords for Ring {
    type Word = AtomicU64;

    fn filled(&self, _: Cell) -> &AtomicU64 {
        unreachable!("pieces do without")
    }

    fn released(&self) -> &AtomicU64 {
        unreachable!("pieces do without")
    }

    fn sender_closed(&self) -> &AtomicU64 {
        &self.sender_closed
    }

    fn receiver_closed(&self) -> &AtomicU64 {
        unreachable!("pieces do without")
    }
}

impl Words for Ring {
    fn wanted(&self) -> &AtomicU64 {
        &self.wanted
    }

    fn given(&self) -> &AtomicU64 {
        &self.given
    }
}

/// Gives the first `count` pieces that are asked for, and closes.
fn give_all(ring: &Ring, count: usize) {
    for _ in 0..count {
        let piece = loop {
            match asked(ring) {
                Some(piece) => break piece,
                None => thread::yield_now(),
            }
        };
        // SAFETY: the pointer is valid during the closure, and loom fails the test if the receiver
        // accesses the body at the same time.
        ring.body.with_mut(|body| unsafe { *body = piece.0 });
        give(ring, piece);
    }
    close(&ring.sender_closed);
}

/// Waits for a piece, and returns what is in the body then; `None` at the end of the link.
fn receive(ring: &Ring, piece: Piece) -> Option<u64> {
    loop {
        ask(ring, piece);
        match has_come(ring, piece) {
            // SAFETY: the pointer is valid during the closure, and loom fails the test if the
            // sender writes the body at the same time.
            Ok(true) => return Some(ring.body.with(|body| unsafe { *body })),
            Ok(false) => thread::yield_now(),
            Err(LinkError::Closed) => return None,
            Err(error) => panic!("{error}"),
        }
    }
}

fn model(given: usize, received: &'static [(u64, usize)]) {
    loom::model(move || {
        let ring = Arc::new(Ring::default());
        let sender = thread::spawn({
            let ring = Arc::clone(&ring);
            move || give_all(&ring, given)
        });
        for (index, &(message, byte)) in received.iter().enumerate() {
            let piece = Piece::new(message, byte);
            let expected = (index < given).then_some(piece.0);
            assert_eq!(receive(&ring, piece), expected);
        }
        sender.join().unwrap();
    });
}

#[test]
fn pieces_arrive_whole_and_once() {
    model(3, &[(1, 0), (1, 8192), (2, 0)]);
}

#[test]
fn what_was_given_before_the_end_arrives_and_then_the_end() {
    model(1, &[(1, 0), (1, 8192)]);
}
