//! Messages arrive once, whole and in order.

use super::{
    Harness, SMALL, eventually, fill, flush, pattern, peeked, receive, send, stays_empty, try_send,
};
use crate::Geometry;

/// Messages of one channel arrive in the order in which they were committed, regardless of the other channels.
pub fn channels_keep_their_order(h: &mut dyn Harness) {
    let (mut a, mut b) = h.connect(SMALL);
    let mut sent = [0_usize; 3];
    let mut received = [0_usize; 3];
    let mut turn = 0;
    eventually(h, "200 messages on each channel", || {
        for (channel, sent) in sent.iter_mut().enumerate() {
            let number = *sent;
            // Each channel has its own message length, so that a mix-up is detected.
            let payload = pattern(number, 8 + 100 * channel);
            if number < 200 && try_send(a.tx.as_mut(), channel, &payload, number as u64) {
                *sent += 1;
            }
        }
        flush(a.tx.as_mut());
        // Each channel is read less often than the previous one, so that some fill up.
        turn += 1;
        for channel in (0..3).filter(|channel| turn % (channel + 1) == 0) {
            if let Some((tag, payload)) = peeked(b.rx.as_mut(), channel) {
                assert_eq!(tag, received[channel] as u64, "order on channel {channel}");
                assert_eq!(payload, pattern(received[channel], 8 + 100 * channel));
                b.rx.release(channel);
                received[channel] += 1;
            }
        }
        (received == [200; 3]).then_some(())
    });
    for channel in 0..3 {
        stays_empty(h, b.rx.as_mut(), channel);
    }
}

/// Slots are reused over many laps, both with a full window and with a nearly empty one.
pub fn many_laps_wrap_around(h: &mut dyn Harness) {
    let geometry = Geometry {
        slot_bytes: 128,
        slots: 3,
        channels: 1,
    };
    let (mut a, mut b) = h.connect(geometry);
    for lap in 0..50 {
        let burst = 1 + lap % geometry.slots;
        for index in 0..burst {
            let number = lap * geometry.slots + index;
            send(
                h,
                a.tx.as_mut(),
                0,
                &pattern(number, number % 129),
                number as u64,
            );
        }
        for index in 0..burst {
            let number = lap * geometry.slots + index;
            let (tag, payload) = receive(h, a.tx.as_mut(), b.rx.as_mut(), 0);
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
        channels: 1,
    };
    let (mut a, mut b) = h.connect(geometry);
    for number in 0..20 {
        send(h, a.tx.as_mut(), 0, &pattern(number, 64), number as u64);
        let (tag, payload) = receive(h, a.tx.as_mut(), b.rx.as_mut(), 0);
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
        send(h, a.tx.as_mut(), 1, b"x", tag);
        assert_eq!(
            receive(h, a.tx.as_mut(), b.rx.as_mut(), 1),
            (tag, b"x".to_vec())
        );
    }
}

/// The two directions are independent, even when both are full.
pub fn traffic_flows_both_ways(h: &mut dyn Harness) {
    let (mut a, mut b) = h.connect(SMALL);
    for _ in 0..5 {
        assert_eq!(fill(h, a.tx.as_mut(), 0, 64, SMALL.slots), SMALL.slots);
        assert_eq!(fill(h, b.tx.as_mut(), 0, 200, SMALL.slots), SMALL.slots);
        for number in 0..SMALL.slots {
            let there = receive(h, a.tx.as_mut(), b.rx.as_mut(), 0);
            assert_eq!(there, (number as u64, pattern(number, 64)));
            let here = receive(h, b.tx.as_mut(), a.rx.as_mut(), 0);
            assert_eq!(here, (number as u64, pattern(number, 200)));
        }
    }
}
