//! Waits end with a reason; wrong data are found before a byte is used.

use std::sync::atomic::Ordering;
use std::time::Duration;

use spark_ccl_types::{DType, Operation, ReduceOp};

use super::buffers::{Buffers, Call};
use super::world::{Failed, World};
use crate::conformance::{copying, delayed};
use crate::linked::tests::over_breaking_link;
use crate::{Error, Form};

const LATE: u64 = 1;
const ABORTED: u64 = 2;
const MISMATCH: u64 = 3;

fn call() -> Call {
    Call {
        operation: Operation::AllReduce,
        root: 0,
        dtype: DType::F32,
        op: ReduceOp::Sum,
        count: 900,
        piece: 256,
        ctas: 2,
        in_place: false,
        is_scaled: false,
        seed: 5,
        word: 5,
    }
}

fn world(form: Form, ranks: usize) -> World {
    World::new(copying, form, (ranks, 2, form.depth(2)))
}

const FORMS: [Form; 2] = [Form::Direct, Form::Shared];

#[test]
fn a_peer_that_does_not_call_is_named_and_nothing_is_written() {
    for form in FORMS {
        let mut world = world(form, 2);
        world.set_patience(200);
        let Some(buffers) = world.run(&[vec![call(), call()], vec![]], 0) else {
            return;
        };
        let failed = world.ranks[0].failed().unwrap();
        assert_eq!((failed.reason, failed.peer, failed.operation), (LATE, 1, 1));
        assert!(buffers[0].iter().all(Buffers::is_untouched));
    }
}

/// The peer is away from its second call on.
#[test]
fn a_peer_that_is_lost_on_the_way_is_named() {
    let mut world = world(Form::Direct, 3);
    world.set_patience(300);
    let calls = [vec![call(), call()], vec![call()], vec![call(), call()]];
    let Some(buffers) = world.run(&calls, 0) else {
        return;
    };
    for rank in [0, 2] {
        let failed = world.ranks[rank].failed().unwrap();
        assert_eq!((failed.reason, failed.peer, failed.operation), (LATE, 1, 2));
        assert_eq!(
            buffers[rank][0].result(),
            Some(&call().expected(rank, 3)[..])
        );
        assert!(buffers[rank][1].is_untouched());
    }
}

#[test]
fn an_abort_ends_waits() {
    let mut world = world(Form::Direct, 2);
    let control = world.ranks[0].abort();
    let aborts = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        control[0].store(1, Ordering::Relaxed);
    });
    let Some(buffers) = world.run(&[vec![call()], vec![]], 0) else {
        return;
    };
    aborts.join().unwrap();
    let failed = world.ranks[0].failed().unwrap();
    assert_eq!((failed.reason, failed.peer), (ABORTED, 1));
    assert!(buffers[0][0].is_untouched());
}

/// A call whose slots have room never waits. An abort before it ends it, too.
#[test]
fn an_abort_ends_what_need_not_wait() {
    let mut world = world(Form::Direct, 2);
    world.ranks[0].abort()[0].store(1, Ordering::Relaxed);
    let sends = Call {
        operation: Operation::Broadcast,
        count: 10,
        ..call()
    };
    let Some(buffers) = world.run(&[vec![sends], vec![]], 0) else {
        return;
    };
    let failed = world.ranks[0].failed().unwrap();
    assert_eq!((failed.reason, failed.peer), (ABORTED, 1));
    assert!(buffers[0][0].is_untouched());
}

/// A rank that only sends has room in both boxes. Slots that are still in its own outbox when its
/// process ends do not come.
#[test]
fn a_call_that_only_sends_lasts_until_its_slots_are_taken() {
    let depth = Form::Direct.depth(2);
    for (slots, ends) in [(depth, true), (2 * depth, false)] {
        let mut world = world(Form::Direct, 2);
        world.set_patience(200);
        let sends = Call {
            operation: Operation::Broadcast,
            count: slots * 64,
            ctas: 1,
            ..call()
        };
        let Some(buffers) = world.run(&[vec![sends], vec![]], 0) else {
            return;
        };
        let failed = world.ranks[0].failed();
        let late = failed.map(|failed| (failed.reason, failed.peer, failed.operation));
        assert_eq!(late, (!ends).then_some((LATE, 1, 1)));
        assert!(buffers[0][0].result().is_some());
    }
}

#[test]
fn calls_that_differ_name_both_and_write_nothing() {
    let others = [
        Call { word: 6, ..call() },
        Call {
            count: 899,
            ..call()
        },
        Call { count: 0, ..call() },
        Call {
            count: 3,
            ctas: 1,
            ..call()
        },
        Call {
            dtype: DType::F64,
            count: 450,
            word: 7,
            ..call()
        },
    ];
    for (other, form) in others
        .iter()
        .flat_map(|other| FORMS.map(|form| (*other, form)))
    {
        let mut world = World::new(delayed, form, (2, 2, form.depth(2)));
        let Some(buffers) = world.run(&[vec![call(), call()], vec![other, call()]], 1) else {
            return;
        };
        for (rank, theirs) in [(0, other), (1, call())] {
            let seen = world.ranks[rank].failed();
            let expected = Failed {
                reason: MISMATCH,
                peer: 1 - rank as u64,
                operation: 1,
                theirs: [theirs.word, theirs.count as u64],
            };
            assert_eq!(seen, Some(expected), "{form:?} {other:?}");
            assert!(buffers[rank].iter().all(Buffers::is_untouched));
        }
    }
}

/// As `schedule.rs` says.
#[test]
fn one_slot_less_than_the_smallest_depth_is_a_deadlock() {
    for (form, ranks) in [(Form::Direct, 2), (Form::Shared, 2), (Form::Shared, 4)] {
        let mut world = World::new(delayed, form, (ranks, 4, form.depth(4) - 1));
        world.set_patience(300);
        if world
            .run(
                &vec![
                    vec![Call {
                        count: 20_000,
                        ..call()
                    }];
                    ranks
                ],
                2,
            )
            .is_none()
        {
            return;
        }
        assert!(
            world.ranks.iter().all(|rank| rank.failed().is_some()),
            "{form:?} {ranks}"
        );
    }
}

#[test]
fn a_link_that_breaks_is_named_and_later_calls_write_nothing() {
    for (form, ranks) in FORMS.iter().flat_map(|&form| [(form, 2), (form, 3)]) {
        let mut world = World::new(over_breaking_link, form, (ranks, 2, form.depth(2)));
        let Some(buffers) = world.run(&vec![vec![call(); 4]; ranks], 1) else {
            return;
        };
        let faults = world.faults.lock().unwrap();
        let is_named = |fault: &Error| fault.to_string().contains("the cable is cut");
        assert!(faults.iter().any(is_named), "{faults:?}");
        for (rank, buffers) in buffers.iter().enumerate() {
            let failed = world.ranks[rank].failed().unwrap();
            assert_eq!(failed.reason, ABORTED, "{form:?}, rank {rank}");
            // The output of the failed call is written in part at most, and nothing around it.
            let number = failed.operation as usize;
            assert!(buffers[number - 1].result().is_some());
            assert!(buffers[number..].iter().all(Buffers::is_untouched));
            for before in &buffers[..number - 1] {
                assert_eq!(before.result(), Some(&call().expected(rank, ranks)[..]));
            }
        }
    }
}
