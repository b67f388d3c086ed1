//! Messages arrive once, whole and in order.

use super::{
    Harness, SMALL, eventually, fill, flush, pattern, peeked, receive, send, stays_empty, try_send,
};
use crate::Geometry;

/// Messages of different lengths arrive in the order in which they were committed, also when the
/// receiver is slow.
pub fn messages_keep_their_order(h: &mut dyn Harness) {
    for reads_each in 1..=3 {
        let (mut a, mut b) = h.connect(SMALL);
        let message = |number: usize| pattern(number, 8 + 100 * (number % 3));
        let (mut sent, mut received, mut turn) = (0, 0, 0);
        eventually(h, "200 messages", || {
            if sent < 200 && try_send(a.tx.as_mut(), &message(sent), sent as u64) {
                sent += 1;
            }
            flush(a.tx.as_mut());
            turn += 1;
            if turn % reads_each == 0
                && let Some((tag, payload)) = peeked(b.rx.as_mut())
            {
                assert_eq!((tag, payload), (received as u64, message(received)));
                b.rx.release();
                received += 1;
            }
            (received == 200).then_some(())
        });
        stays_empty(h, b.rx.as_mut());
    }
}

/// Slots are reused over many laps, both with a full window and with a nearly empty one.
pub fn many_laps_wrap_around(h: &mut dyn Harness) {
    let geometry = Geometry {
        slot_bytes: 128,
        slots: 3,
    };
    let (mut a, mut b) = h.connect(geometry);
    for lap in 0..50 {
        let burst = 1 + lap % geometry.slots;
        for index in 0..burst {
            let number = lap * geometry.slots + index;
            send(
                h,
                a.tx.as_mut(),
                &pattern(number, number % 129),
                number as u64,
            );
        }
        for index in 0..burst {
            let number = lap * geometry.slots + index;
            let (tag, payload) = receive(h, a.tx.as_mut(), b.rx.as_mut());
            assert_eq!(
                (tag, payload),
                (number as u64, pattern(number, number % 129))
            );
        }
    }
}

/// A window of one slot makes progress.
pub fn one_slot_is_enough(h: &mut dyn Harness) {
    let geometry = Geometry {
        slot_bytes: 64,
        slots: 1,
    };
    let (mut a, mut b) = h.connect(geometry);
    for number in 0..20 {
        send(h, a.tx.as_mut(), &pattern(number, 64), number as u64);
        let (tag, payload) = receive(h, a.tx.as_mut(), b.rx.as_mut());
        assert_eq!((tag, payload), (number as u64, pattern(number, 64)));
    }
}

/// All 64 bits of a tag arrive.
pub fn tags_are_kept(h: &mut dyn Harness) {
    let (mut a, mut b) = h.connect(SMALL);
    for tag in [
        0,
        1,
        u64::MAX,
        1 << 63,
        0x0123_4567_89ab_cdef,
        u64::from(u32::MAX),
    ] {
        send(h, a.tx.as_mut(), b"x", tag);
        assert_eq!(
            receive(h, a.tx.as_mut(), b.rx.as_mut()),
            (tag, b"x".to_vec())
        );
    }
}

/// The two directions are independent, even when both are full.
pub fn traffic_flows_both_ways(h: &mut dyn Harness) {
    let (mut a, mut b) = h.connect(SMALL);
    for _ in 0..5 {
        assert_eq!(fill(h, a.tx.as_mut(), 64, SMALL.slots), SMALL.slots);
        assert_eq!(fill(h, b.tx.as_mut(), 200, SMALL.slots), SMALL.slots);
        for number in 0..SMALL.slots {
            let there = receive(h, a.tx.as_mut(), b.rx.as_mut());
            assert_eq!(there, (number as u64, pattern(number, 64)));
            let here = receive(h, b.tx.as_mut(), a.rx.as_mut());
            assert_eq!(here, (number as u64, pattern(number, 200)));
        }
    }
}
