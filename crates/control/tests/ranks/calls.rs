//! Ranks compare their calls of device memory.

use std::sync::Arc;

use spark_ccl_control::{Fault, Leave, Watch};

use crate::common::{World, everyone_fails, fault, until, watches};

in_any_world! {
    the_same_calls_are_known_to_be_the_same,
    the_first_different_call_is_named_with_its_ranks,
    calls_in_another_order_are_different,
    nobody_waits_for_a_rank_that_is_not_as_far,
    nobody_waits_for_a_rank_that_has_left,
}

/// All of these ranks make the same calls, each named by a number.
fn make(watches: &[Arc<Watch>], calls: impl IntoIterator<Item = u64>) {
    for call in calls {
        for watch in watches {
            watch.record_call([call, 1]);
        }
    }
}

/// Waits until the others have answered about this rank's calls, or there is a fault.
fn compare(watch: &Watch) {
    let (made, question) = (watch.calls_made(), watch.ask_of_calls());
    until("answers", || {
        watch.failed() || watch.uncompared(made, question).is_empty()
    });
}

fn the_same_calls_are_known_to_be_the_same(world: World) {
    for size in [1, 2, 5, 20] {
        let world = world(size);
        let all = watches(&world, 1);
        make(&all, 1..=300);
        compare(&all[0]);
        assert_eq!(all[0].calls_made(), 300);
        let expected = if size == 1 { 0 } else { 300 };
        assert_eq!(all[0].calls_compared(), expected);
        assert!(all.iter().all(|watch| !watch.failed()), "{size}");
    }
}

fn the_first_different_call_is_named_with_its_ranks(world: World) {
    let world = world(4);
    let all = watches(&world, 1);
    make(&all, 1..=99);
    make(&all[..3], [100]);
    all[3].record_call([200, 1]);
    make(&all, 101..=250);
    compare(&all[0]);
    let Fault::Mismatch {
        sequence,
        rank_a,
        words_a,
        rank_b,
        words_b,
    } = &*fault(&all[1])
    else {
        panic!("{}", fault(&all[1]));
    };
    assert_eq!(sequence & 0xff_ffff, 100);
    let called = |rank: &spark_ccl_control::Member| if rank.rank == 3 { 200 } else { 100 };
    assert!(rank_a.rank == 3 || rank_b.rank == 3);
    assert_eq!(words_a, &format!("call {} of 1 elements", called(rank_a)));
    assert_eq!(words_b, &format!("call {} of 1 elements", called(rank_b)));
    everyone_fails(&all);
}

fn calls_in_another_order_are_different(world: World) {
    let world = world(2);
    let all = watches(&world, 1);
    make(&all, [1]);
    make(&all[..1], [2, 3]);
    make(&all[1..], [3, 2]);
    compare(&all[1]);
    everyone_fails(&all);
}

/// A rank that is not as far says so, and compares the others' calls when it makes its own.
fn nobody_waits_for_a_rank_that_is_not_as_far(world: World) {
    let world = world(2);
    let all = watches(&world, 1);
    make(&all, [1]);
    make(&all[..1], [2]);
    compare(&all[0]);
    assert_eq!(all[0].calls_compared(), 1);
    make(&all[1..], [2]);
    until("the comparison", || all[0].calls_compared() == 2);
    make(&all[..1], [3]);
    compare(&all[0]);
    make(&all[1..], [4]);
    everyone_fails(&all);
}

fn nobody_waits_for_a_rank_that_has_left(world: World) {
    let world = world(3);
    let all = watches(&world, 1);
    make(&all, [1, 2]);
    all[2].leave(Leave::after(0));
    until("the departure", || all[0].left(2).is_some());
    compare(&all[0]);
    until("the comparison", || all[0].calls_compared() == 2);
}
