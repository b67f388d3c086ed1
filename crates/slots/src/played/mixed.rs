//! Calls of all kinds, one after the other, with any root; and calls that differ.

use std::collections::BTreeSet;

use spark_ccl_types::{DType, Operation};

use super::buffers::Call;
use super::results::any_call;
use super::world::World;
use crate::Form;
use crate::conformance::delayed;
use crate::route::OPERATIONS;

/// One rank is late in all calls, so roots among the others are far ahead.
#[test]
fn many_calls_of_all_kinds_follow_each_other() {
    for (ranks, ahead, form, has_packets) in [
        (2, 1, Form::Direct, false),
        (3, 1, Form::Shared, false),
        (3, 1, Form::Direct, true),
        (4, 2, Form::Shared, false),
    ] {
        let mut world = World::new(delayed, form, (ranks, ahead, form.depth(ahead)));
        world.has_packets = has_packets;
        let mut seen = BTreeSet::new();
        for part in 0..10 {
            let calls = (0..1000 / ranks as u64).map(|number| Call {
                operation: OPERATIONS[(number % 8) as usize],
                ..any_call(part << 20 | number << 8 | 3, ranks)
            });
            // Short ones, of one type: there are many.
            let calls = calls.map(|call| Call {
                dtype: DType::I32,
                count: call.count * call.dtype.size() % 300,
                is_scaled: false,
                ..call
            });
            let calls: Vec<_> = calls.collect();
            seen.extend(calls.iter().map(|call| (call.operation, call.root)));
            let Some(buffers) = world.run(&vec![calls.clone(); ranks], part) else {
                return;
            };
            for (rank, buffers) in buffers.iter().enumerate() {
                assert_eq!(world.ranks[rank].failed(), None, "rank {rank}");
                for (call, buffers) in calls.iter().zip(buffers) {
                    let expected = call.expected(rank, ranks);
                    assert_eq!(buffers.result(), Some(&expected[..]), "{rank}: {call:?}");
                }
            }
        }
        assert_eq!(seen.len(), 8 * ranks);
    }
}

fn call(operation: Operation, root: usize) -> Call {
    Call {
        operation,
        root,
        count: 200,
        in_place: false,
        is_scaled: false,
        ctas: 2,
        piece: 256,
        dtype: DType::F32,
        word: u64::from(operation.code()) << 8 | root as u64,
        ..any_call(9, 3)
    }
}

/// Rank 1 of three makes `other`, and the others make `own`. Then all make an `all_reduce`. Each
/// pair of ranks exchanges something there, and so compares the calls that it has yet to compare.
fn differ(own: Call, other: Call, form: Form) {
    differ_in(own, other, form, false);
    // Packets would not compare calls of lanes.
    if own.is_short() && other.is_short() {
        differ_in(own, other, form, true);
    }
}

fn differ_in(own: Call, other: Call, form: Form, has_packets: bool) {
    let what = format!("{own:?}, {other:?}, {form:?}, packets: {has_packets}");
    let mut world = World::new(delayed, form, (3, 2, form.depth(2)));
    world.has_packets = has_packets;
    world.set_patience(150);
    let last = call(Operation::AllReduce, 0);
    let last = Call {
        word: 1 << 20,
        ..last
    };
    let calls = [own, other, own].map(|first| vec![first, last]);
    let Some(buffers) = world.run(&calls, 1) else {
        return;
    };
    let failed = (0..3).filter_map(|rank| world.ranks[rank].failed());
    assert!(failed.count() > 0, "{what}");
    for (rank, buffers) in buffers.iter().enumerate() {
        // Data that were not compared are not used: a call that has ended is right.
        let ended = world.ranks[rank].calls()[1];
        for (number, of_call) in (0..).zip(buffers) {
            let result = of_call.result();
            let is_right = result
                .is_some_and(|result| ended <= number || result == of_call.call.expected(rank, 3));
            assert!(is_right, "rank {rank}, call {number}: {what}");
        }
    }
}

#[test]
fn operations_that_differ_are_found() {
    for (own, other) in OPERATIONS
        .into_iter()
        .flat_map(|own| OPERATIONS.map(move |other| (own, other)))
        .filter(|(own, other)| own != other)
    {
        for form in [Form::Direct, Form::Shared] {
            differ(call(own, 0), call(other, 0), form);
        }
    }
}

#[test]
fn roots_counts_types_and_reductions_that_differ_are_found() {
    for operation in OPERATIONS {
        for form in [Form::Direct, Form::Shared] {
            let own = call(operation, 0);
            if operation.is_rooted() {
                differ(own, call(operation, 1), form);
            }
            differ(own, Call { count: 190, ..own }, form);
            differ(own, Call { count: 0, ..own }, form);
            let (dtype, word) = (DType::I32, own.word + 1);
            differ(own, Call { dtype, word, ..own }, form);
            if operation.reduces() {
                differ(own, Call { word, ..own }, form);
            }
        }
    }
}
