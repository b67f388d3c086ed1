//! Credits: how many messages a link accepts while its receiver does nothing.

use super::{Harness, SMALL, fill, pattern, receive, send, wait_peeked};
use crate::Geometry;

/// A channel accepts `slots` messages of any size while the receiver does not read. All of them arrive later.
pub fn credits_are_the_slots(h: &mut dyn Harness) {
    for slots in [1, 2, 5] {
        for size in [0, 40, 41, 104, 105, 128] {
            let geometry = Geometry {
                slot_bytes: 128,
                slots,
                channels: 2,
            };
            let (mut a, mut b) = h.connect(geometry);
            let most = if h.exact_credits() { slots + 1 } else { slots };
            for channel in 0..2 {
                let taken = fill(h, a.tx.as_mut(), channel, size, most);
                assert_eq!(
                    taken, slots,
                    "messages of {size} taken on channel {channel}"
                );
            }
            for channel in 0..2 {
                for number in 0..slots {
                    let message = receive(h, a.tx.as_mut(), b.rx.as_mut(), channel);
                    assert_eq!(message, (number as u64, pattern(number, size)));
                }
            }
        }
    }
}

/// Each release makes room for one more message; peeking alone does not.
pub fn released_slots_return(h: &mut dyn Harness) {
    let (mut a, mut b) = h.connect(SMALL);
    for round in 0..20 {
        assert_eq!(
            fill(h, a.tx.as_mut(), 0, 50, SMALL.slots),
            SMALL.slots,
            "round {round}"
        );
        let freed = 1 + round % SMALL.slots;
        for _ in 0..freed {
            receive(h, a.tx.as_mut(), b.rx.as_mut(), 0);
        }
        if freed < SMALL.slots {
            wait_peeked(h, a.tx.as_mut(), b.rx.as_mut(), 0);
        }
        if h.exact_credits() {
            assert_eq!(
                fill(h, a.tx.as_mut(), 0, 50, SMALL.slots + 1),
                freed,
                "round {round}"
            );
        } else {
            assert_eq!(fill(h, a.tx.as_mut(), 0, 50, freed), freed, "round {round}");
        }
        for _ in 0..SMALL.slots {
            receive(h, a.tx.as_mut(), b.rx.as_mut(), 0);
        }
    }
}

/// A channel that is full because it is not read does not block other channels.
pub fn a_full_channel_blocks_no_other(h: &mut dyn Harness) {
    for full in 0..SMALL.channels {
        let (mut a, mut b) = h.connect(SMALL);
        // Also more than the operating system's buffers hold.
        let stuffed = fill(h, a.tx.as_mut(), full, SMALL.slot_bytes, 1 << 16);
        assert!(stuffed >= SMALL.slots, "{stuffed} messages taken");
        for channel in (0..SMALL.channels).filter(|&channel| channel != full) {
            for number in 0..3 * SMALL.slots {
                send(
                    h,
                    a.tx.as_mut(),
                    channel,
                    &pattern(number, 77),
                    number as u64,
                );
                let message = receive(h, a.tx.as_mut(), b.rx.as_mut(), channel);
                assert_eq!(message, (number as u64, pattern(number, 77)));
            }
        }
        for number in 0..stuffed {
            let message = receive(h, a.tx.as_mut(), b.rx.as_mut(), full);
            assert_eq!(message, (number as u64, pattern(number, SMALL.slot_bytes)));
        }
    }
}
