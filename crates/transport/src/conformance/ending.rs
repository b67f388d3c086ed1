//! How a link ends, and which calls it refuses.

use super::{
    Harness, LinkEnd, SMALL, commit, eventually, flush, is_misuse, pattern, receive, send,
    stays_empty,
};
use crate::LinkError;

/// What was sent before the sender closed can still be read. Then the end is reported, repeatedly.
/// The other direction still works.
pub fn a_closed_sender_is_seen_after_draining(h: &mut dyn Harness) {
    let (mut a, mut b) = h.connect(SMALL);
    for number in 0..SMALL.slots {
        send(h, a.tx.as_mut(), &pattern(number, 100), number as u64);
    }
    let mut tx = a.tx;
    eventually(h, "flush", || flush(tx.as_mut()).then_some(()));
    drop(tx);
    for number in 0..SMALL.slots {
        let (tag, payload) = eventually(h, "a message of the sender that closed", || {
            super::peeked(b.rx.as_mut())
        });
        assert_eq!((tag, payload), (number as u64, pattern(number, 100)));
        b.rx.release();
    }
    for _ in 0..3 {
        eventually(h, "the end of the link", || match b.rx.peek() {
            Ok(None) => None,
            Err(LinkError::Closed) => Some(()),
            other => panic!("instead of the end of the link: {other:?}"),
        });
    }
    send(h, b.tx.as_mut(), b"still here", 3);
    assert_eq!(
        receive(h, b.tx.as_mut(), a.rx.as_mut()),
        (3, b"still here".to_vec())
    );
}

/// A sender whose peer is gone gets an error, at the latest when the window is full.
pub fn a_closed_peer_ends_sending(h: &mut dyn Harness) {
    let (a, b) = h.connect(SMALL);
    let LinkEnd { mut tx, rx: _rx } = a;
    drop(b);
    eventually(h, "an error of the sender", || {
        let reserved = match tx.reserve(100) {
            Ok(slot) => slot.map(|slot| slot.fill(1)).is_some(),
            Err(_) => return Some(()),
        };
        if reserved && tx.commit(100, 0).is_err() {
            return Some(());
        }
        tx.flush().is_err().then_some(())
    });
}

/// Invalid calls are refused, and the link continues to work.
pub fn misuse_is_an_error_and_harms_nothing(h: &mut dyn Harness) {
    let (mut a, mut b) = h.connect(SMALL);
    let slot_bytes = SMALL.slot_bytes;
    let tx = a.tx.as_mut();
    assert!(
        is_misuse(&tx.reserve(slot_bytes + 1)),
        "reserve of more than a slot"
    );
    assert!(
        is_misuse(&tx.reserve(usize::MAX)),
        "reserve of more than a slot"
    );
    assert!(is_misuse(&tx.commit(0, 0)), "commit without reserve");

    eventually(h, "a slot", || match tx.reserve(16) {
        Ok(slot) => slot.map(|slot| slot.copy_from_slice(&pattern(4, 16))),
        Err(error) => panic!("reserve: {error}"),
    });
    assert!(
        is_misuse(&tx.commit(17, 0)),
        "commit of more than was reserved"
    );
    assert!(
        is_misuse(&tx.commit(15, 0)),
        "commit of less than was reserved"
    );
    commit(tx, 16, 9);
    assert!(is_misuse(&tx.commit(16, 9)), "commit twice");
    assert_eq!(receive(h, tx, b.rx.as_mut()), (9, pattern(4, 16)));
    stays_empty(h, b.rx.as_mut());
}
