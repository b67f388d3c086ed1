//! Credits: how many messages a link accepts while its receiver does nothing.

use super::{Harness, SMALL, fill, pattern, receive, wait_peeked};
use crate::Geometry;

/// A link accepts `slots` messages of any size while the receiver does not read. All of them arrive
/// later.
pub fn credits_are_the_slots(h: &mut dyn Harness) {
    for slots in [1, 2, 5] {
        for size in [0, 40, 41, 104, 105, 128] {
            let geometry = Geometry {
                slot_bytes: 128,
                slots,
            };
            let (mut a, mut b) = h.connect(geometry);
            let most = if h.exact_credits() { slots + 1 } else { slots };
            let taken = fill(h, a.tx.as_mut(), size, most);
            assert_eq!(taken, slots, "messages of {size} taken");
            for number in 0..slots {
                let message = receive(h, a.tx.as_mut(), b.rx.as_mut());
                assert_eq!(message, (number as u64, pattern(number, size)));
            }
        }
    }
}

/// Each release makes room for one more message; peeking alone does not.
pub fn released_slots_return(h: &mut dyn Harness) {
    let (mut a, mut b) = h.connect(SMALL);
    for round in 0..20 {
        assert_eq!(
            fill(h, a.tx.as_mut(), 50, SMALL.slots),
            SMALL.slots,
            "round {round}"
        );
        let freed = 1 + round % SMALL.slots;
        for _ in 0..freed {
            receive(h, a.tx.as_mut(), b.rx.as_mut());
        }
        if freed < SMALL.slots {
            wait_peeked(h, a.tx.as_mut(), b.rx.as_mut());
        }
        if h.exact_credits() {
            assert_eq!(
                fill(h, a.tx.as_mut(), 50, SMALL.slots + 1),
                freed,
                "round {round}"
            );
        } else {
            assert_eq!(fill(h, a.tx.as_mut(), 50, freed), freed, "round {round}");
        }
        for _ in 0..SMALL.slots {
            receive(h, a.tx.as_mut(), b.rx.as_mut());
        }
    }
}

/// A link that is full delivers everything that it took, also where that is more than the system's
/// buffers hold.
pub fn a_full_link_delivers_what_it_took(h: &mut dyn Harness) {
    let (mut a, mut b) = h.connect(SMALL);
    let taken = fill(h, a.tx.as_mut(), SMALL.slot_bytes, 1 << 16);
    assert!(taken >= SMALL.slots, "{taken} messages taken");
    for number in 0..taken {
        let message = receive(h, a.tx.as_mut(), b.rx.as_mut());
        assert_eq!(message, (number as u64, pattern(number, SMALL.slot_bytes)));
    }
}
