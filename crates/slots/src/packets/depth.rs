//! How many slots a box of packets needs: a model of how far ranks can be ahead of each other.

use std::collections::HashSet;

use crate::layout::PACKET_SLOTS;
use crate::plan::MOST_BY_PACKETS;
use crate::route::OPERATIONS;
use crate::{Kernel, Plan, Route, Shape};

const CALLS: usize = 4;

/// The most slots, at any time, that a rank has sent and its peer has not consumed, however late
/// either rank is. A call sends its slot, and then consumes the peer's.
fn most_unconsumed() -> usize {
    // How many slots a rank has sent and consumed after each number of steps.
    let sent = |steps: usize| steps.div_ceil(2);
    let consumed = |steps: usize| steps / 2;
    let may_go = |own: usize, other: usize| {
        let sends = own.is_multiple_of(2);
        own < 2 * CALLS && (sends || sent(other) > consumed(own))
    };
    let (mut most, mut seen) = (0, HashSet::new());
    let mut open = vec![[0, 0]];
    while let Some(ranks) = open.pop() {
        if !seen.insert(ranks) {
            continue;
        }
        let [one, other] = ranks;
        most = most.max(sent(one) - consumed(other).min(sent(one)));
        open.extend(may_go(one, other).then_some([one + 1, other]));
        open.extend(may_go(other, one).then_some([one, other + 1]));
    }
    assert!(seen.contains(&[2 * CALLS; 2]), "calls end");
    most
}

#[test]
fn a_box_holds_what_a_late_peer_has_not_consumed_and_no_slot_more() {
    assert_eq!(PACKET_SLOTS, most_unconsumed());
}

/// The model holds only for these: each rank waits for all others in each call.
#[test]
fn calls_by_packets_go_both_ways_between_all_ranks() {
    let shape = Shape::new(8, 8, 64 << 10).unwrap();
    let mut count = 0;
    for (operation, ranks) in OPERATIONS
        .into_iter()
        .flat_map(|operation| (2..=8).map(move |ranks| (operation, ranks)))
    {
        for bytes in [0, 1, MOST_BY_PACKETS, MOST_BY_PACKETS + 1] {
            let plan = Plan::new(operation, bytes, ranks, shape, 16 << 10);
            if plan.kernel != Kernel::Packets {
                continue;
            }
            count += 1;
            let all = (1 << ranks) - 1;
            for rank in 0..ranks {
                let route = Route::new(operation, plan.form, rank, 0, ranks);
                assert_eq!((route.to, route.from), ([all, 0], [all, 0]), "{operation}");
            }
        }
    }
    assert_eq!(count, 4 * 7 * 3);
}
