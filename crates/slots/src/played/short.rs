//! Short calls by packets: waits end with a reason; wrong data are found before a byte is used.

use std::sync::atomic::Ordering;

use spark_ccl_types::{DType, Operation};

use super::buffers::{Buffers, Call};
use super::results::any_call;
use super::world::{Failed, World};
use crate::Form;
use crate::conformance::delayed;
use crate::layout::RENEWED_EACH;

const LATE: u64 = 1;
const ABORTED: u64 = 2;
const MISMATCH: u64 = 3;

fn call(operation: Operation, count: usize) -> Call {
    Call {
        operation,
        dtype: DType::F32,
        count,
        in_place: false,
        is_scaled: false,
        word: u64::from(operation.code()),
        ..any_call(5, 3)
    }
}

fn sum(count: usize) -> Call {
    call(Operation::AllReduce, count)
}

fn world(ranks: usize) -> World {
    let mut world = World::new(delayed, Form::Direct, (ranks, 2, 2));
    world.has_packets = true;
    world
}

#[test]
fn a_peer_that_does_not_call_is_named_and_nothing_is_written() {
    let mut world = world(3);
    world.set_patience(200);
    let calls = [vec![sum(200); 2], vec![sum(200)], vec![sum(200); 2]];
    let Some(buffers) = world.run(&calls, 0) else {
        return;
    };
    for rank in [0, 2] {
        let failed = world.ranks[rank].failed().unwrap();
        assert_eq!((failed.reason, failed.peer, failed.operation), (LATE, 1, 2));
        assert_eq!(
            buffers[rank][0].result(),
            Some(&sum(200).expected(rank, 3)[..])
        );
        assert!(buffers[rank][1].is_untouched());
    }
}

#[test]
fn an_abort_ends_waits() {
    let mut world = world(2);
    world.ranks[0].abort()[0].store(1, Ordering::Relaxed);
    let Some(buffers) = world.run(&[vec![sum(9)], vec![]], 0) else {
        return;
    };
    let failed = world.ranks[0].failed().unwrap();
    assert_eq!((failed.reason, failed.peer), (ABORTED, 1));
    assert!(buffers[0][0].is_untouched());
}

/// The peer's packets have come.
#[test]
fn an_abort_ends_what_need_not_wait() {
    let mut world = world(2);
    world.set_patience(100);
    if world.run(&[vec![], vec![sum(9)]], 0).is_none() {
        return;
    }
    world.ranks[0].abort()[0].store(1, Ordering::Relaxed);
    let buffers = world.run(&[vec![sum(9)], vec![]], 0).unwrap();
    let failed = world.ranks[0].failed().unwrap();
    assert_eq!((failed.reason, failed.peer), (ABORTED, 1));
    assert!(buffers[0][0].is_untouched());
}

/// Otherwise both ranks would take this rank's second call for the peer's first one.
#[test]
fn a_call_that_went_another_way_at_one_rank_is_not_passed_over() {
    for has_packets in [true, false] {
        let mut world = world(2);
        world.has_packets = has_packets;
        world.set_patience(5000);
        world.ranks[1].calls_elsewhere();
        let calls = [vec![sum(100); 2], vec![sum(100)]];
        let Some(buffers) = world.run(&calls, 0) else {
            return;
        };
        for (rank, operation) in [(0, 1), (1, 2)] {
            let failed = world.ranks[rank].failed().unwrap();
            assert_eq!((failed.reason, failed.operation), (MISMATCH, operation));
            assert!(buffers[rank].iter().all(Buffers::is_untouched));
        }
    }
}

#[test]
fn calls_that_differ_name_both_and_write_nothing() {
    use Operation::{AllGather, AllToAll, ReduceScatter};
    let others = [
        Call {
            word: 77,
            ..sum(200)
        },
        sum(199),
        sum(0),
        sum(250),
        call(AllGather, 200),
        call(AllToAll, 200),
        call(ReduceScatter, 10),
    ];
    for other in others {
        let mut world = world(2);
        let Some(buffers) = world.run(&[vec![sum(200); 2], vec![other; 2]], 1) else {
            return;
        };
        for (rank, theirs) in [(0, other), (1, sum(200))] {
            let expected = Failed {
                reason: MISMATCH,
                peer: 1 - rank as u64,
                operation: 1,
                theirs: [theirs.word, theirs.count as u64],
            };
            assert_eq!(world.ranks[rank].failed(), Some(expected), "{other:?}");
            assert!(buffers[rank].iter().all(Buffers::is_untouched));
        }
    }
}

fn sum_of_bytes(count: usize) -> Call {
    Call {
        dtype: DType::U8,
        ..sum(count)
    }
}

/// A packet may be left from an older slot whose number has the same last bits.
#[test]
fn slots_are_renewed_before_their_numbers_come_around() {
    for (before, count) in [(RENEWED_EACH - 4, 5), ((1 << 32) - 5, 12)] {
        let mut world = world(2);
        world.start_packets_at(before);
        let lens = (0..count).map(|number| if number / 2 % 2 == 0 { 1024 } else { 1 });
        let calls: Vec<_> = lens.map(sum_of_bytes).collect();
        let Some(buffers) = world.run(&vec![calls.clone(); 2], before) else {
            return;
        };
        for (rank, buffers) in buffers.iter().enumerate() {
            assert_eq!(world.ranks[rank].failed(), None, "after {before}");
            for (call, buffers) in calls.iter().zip(buffers) {
                assert_eq!(buffers.result(), Some(&call.expected(rank, 2)[..]));
            }
            if before < RENEWED_EACH {
                // The packets of a call of one byte.
                let sent = world.ranks[rank].sent_packets(RENEWED_EACH);
                assert!(sent.iter().all(|half| half >> 32 == RENEWED_EACH));
            }
        }
    }
}

#[test]
fn calls_that_differ_where_slots_are_renewed_write_nothing() {
    let mut world = world(2);
    world.start_packets_at(RENEWED_EACH - 1);
    let calls = [sum_of_bytes(1), sum_of_bytes(1024)].map(|call| vec![call]);
    let Some(buffers) = world.run(&calls, 0) else {
        return;
    };
    for (rank, buffers) in buffers.iter().enumerate() {
        assert_eq!(world.ranks[rank].failed().unwrap().reason, MISMATCH);
        assert!(buffers[0].is_untouched());
    }
}

/// No kernel sees slots of the other kind; the proxies compare them.
#[test]
fn a_call_that_goes_by_lanes_at_a_peer_writes_nothing() {
    let mut world = world(2);
    world.set_patience(200);
    let long = sum(2500);
    let Some(buffers) = world.run(&[vec![sum(200)], vec![long]], 1) else {
        return;
    };
    for (rank, buffers) in buffers.iter().enumerate() {
        assert_eq!(world.ranks[rank].failed().unwrap().reason, LATE);
        assert!(buffers[0].is_untouched());
    }
}
