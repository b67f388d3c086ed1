//! The contents of reserved and peeked slots, and how long they stay.

use super::{
    Harness, SMALL, commit, eventually, flush, pattern, peeked, receive, send, stays_empty,
    wait_peeked,
};
use crate::Geometry;

/// Payloads of all sizes arrive whole: empty ones, those around the limit for inline payloads, and
/// whole slots.
pub fn payloads_of_all_sizes_arrive(h: &mut dyn Harness) {
    let geometry = Geometry {
        slot_bytes: 64 << 10,
        slots: 2,
    };
    let (mut a, mut b) = h.connect(geometry);
    let sizes = [
        0,
        1,
        7,
        8,
        39,
        40,
        41,
        63,
        64,
        65,
        103,
        104,
        105,
        127,
        1000,
        (64 << 10) - 1,
        64 << 10,
    ];
    for (number, &size) in sizes.iter().chain(sizes.iter().rev()).enumerate() {
        send(h, a.tx.as_mut(), &pattern(number, size), number as u64);
        let (tag, payload) = receive(h, a.tx.as_mut(), b.rx.as_mut());
        assert_eq!((tag, payload.len()), (number as u64, size));
        assert!(
            payload == pattern(number, size),
            "bytes of a message of {size}"
        );
    }
}

/// Reserving again returns the same slot with its contents and uses no other slot. The length may
/// be different.
pub fn reserving_repeats_itself(h: &mut dyn Harness) {
    let (mut a, mut b) = h.connect(SMALL);
    for size in [8, 104, 105, 256] {
        let tx = a.tx.as_mut();
        eventually(h, "a slot", || match tx.reserve(size) {
            Ok(slot) => slot.map(|slot| slot.copy_from_slice(&pattern(size, size))),
            Err(error) => panic!("reserve: {error}"),
        });
        for _ in 0..3 * SMALL.slots {
            match tx.reserve(size) {
                Ok(Some(slot)) => assert_eq!(slot, pattern(size, size)),
                other => panic!("reserving again: {other:?}"),
            }
        }
        commit(tx, size, 5);
        assert_eq!(receive(h, tx, b.rx.as_mut()), (5, pattern(size, size)));
    }
    // The last requested length counts, not the first.
    for (first, last) in [(8, 256), (256, 8), (0, 105)] {
        let tx = a.tx.as_mut();
        eventually(h, "a slot", || {
            tx.reserve(first)
                .is_ok_and(|slot| slot.is_some())
                .then_some(())
        });
        match tx.reserve(last) {
            Ok(Some(slot)) => slot.copy_from_slice(&pattern(last, last)),
            other => panic!("reserving again: {other:?}"),
        }
        commit(tx, last, 6);
        assert_eq!(receive(h, tx, b.rx.as_mut()), (6, pattern(last, last)));
    }
    stays_empty(h, b.rx.as_mut());
}

/// Peeking again returns the same message until it is released. Releasing twice is the same as
/// once, and releasing without a peeked message does nothing.
pub fn peeking_repeats_itself(h: &mut dyn Harness) {
    let (mut a, mut b) = h.connect(SMALL);
    b.rx.release();
    for number in 0..SMALL.slots {
        send(h, a.tx.as_mut(), &pattern(number, 90), number as u64);
    }
    for number in 0..SMALL.slots {
        let first = wait_peeked(h, a.tx.as_mut(), b.rx.as_mut());
        assert_eq!(first, (number as u64, pattern(number, 90)));
        for _ in 0..10 {
            flush(a.tx.as_mut());
            h.pass_time();
            assert_eq!(peeked(b.rx.as_mut()), Some(first.clone()));
        }
        b.rx.release();
        b.rx.release();
    }
    stays_empty(h, b.rx.as_mut());
}

/// Nothing is sent before the commit, and later messages do not change a message that was sent.
pub fn what_was_reserved_is_what_is_sent(h: &mut dyn Harness) {
    let (mut a, mut b) = h.connect(SMALL);
    let tx = a.tx.as_mut();
    eventually(h, "a slot", || match tx.reserve(100) {
        Ok(slot) => slot.map(|slot| slot.copy_from_slice(&pattern(1, 100))),
        Err(error) => panic!("reserve: {error}"),
    });
    flush(tx);
    stays_empty(h, b.rx.as_mut());
    commit(tx, 100, 1);
    send(h, a.tx.as_mut(), &pattern(2, 100), 2);
    assert_eq!(
        receive(h, a.tx.as_mut(), b.rx.as_mut()),
        (1, pattern(1, 100))
    );
    assert_eq!(
        receive(h, a.tx.as_mut(), b.rx.as_mut()),
        (2, pattern(2, 100))
    );
}

/// `flush` eventually returns true, without any action of the receiver if the window has room; then
/// everything arrives without further calls.
pub fn flush_says_when_nothing_is_held_back(h: &mut dyn Harness) {
    let (mut a, mut b) = h.connect(SMALL);
    assert!(
        flush(a.tx.as_mut()),
        "something is held back before anything was sent"
    );
    for number in 0..SMALL.slots {
        send(h, a.tx.as_mut(), &pattern(number, 256), number as u64);
    }
    let tx = a.tx.as_mut();
    eventually(h, "flush", || flush(tx).then_some(()));
    for number in 0..SMALL.slots {
        let (tag, payload) = eventually(h, "a flushed message", || peeked(b.rx.as_mut()));
        assert_eq!((tag, payload), (number as u64, pattern(number, 256)));
        b.rx.release();
    }
}
