//! Results are right if any rank is late, with as few slots as there may be.

use spark_ccl_testing::scramble;
use spark_ccl_types::{DType, ReduceOp};

use super::buffers::Call;
use super::is_watched;
use super::world::{LANES, World};
use crate::Form;
use crate::conformance::{Make, copying, delayed, placed, written};
use crate::linked::tests::devices::over_devices;
use crate::linked::tests::{over_memory, over_sockets};
use crate::route::OPERATIONS;

const OPS: [ReduceOp; 5] = [
    ReduceOp::Sum,
    ReduceOp::Prod,
    ReduceOp::Max,
    ReduceOp::Min,
    ReduceOp::Avg,
];

/// A random call, of any type, reduction and length, also without elements.
pub(super) fn any_call(seed: u64, ranks: usize) -> Call {
    let random = |what, limit: usize| scramble(seed, what) as usize % limit;
    let dtype = DType::ALL[seed as usize % DType::ALL.len()];
    let op = OPS[seed as usize / DType::ALL.len() % OPS.len()];
    let most = [1, 40, 3000, 9000][random(1, 4)];
    // Half of them are `all_reduce`.
    let operation = OPERATIONS[random(7, 8) * random(8, 2)];
    Call {
        operation,
        root: random(9, ranks),
        dtype,
        op,
        count: random(2, most) / dtype.size(),
        piece: [16, 128, 256][random(3, 3)],
        ctas: 1 + random(4, LANES) as u32,
        in_place: random(5, 2) == 0,
        is_scaled: operation.reduces() && op == ReduceOp::Sum && random(6, 3) == 0,
        seed,
        word: seed,
    }
}

fn check(make: Make, form: Form, ranks: usize, ahead: usize, calls: std::ops::Range<u64>) {
    let mut world = World::new(make, form, (ranks, ahead, form.depth(ahead)));
    check_in(&mut world, calls);
}

fn check_in(world: &mut World, calls: std::ops::Range<u64>) {
    let (ranks, ahead) = (world.ranks.len(), world.ahead);
    let calls: Vec<_> = calls.map(|seed| any_call(seed, ranks)).collect();
    let Some(buffers) = world.run(&vec![calls.clone(); ranks], ahead as u64) else {
        return;
    };
    assert_eq!(*world.faults.lock().unwrap(), []);
    for (rank, buffers) in buffers.iter().enumerate() {
        assert_eq!(world.ranks[rank].failed(), None, "rank {rank}");
        assert_eq!(world.ranks[rank].calls(), [calls.len() as u64; 2]);
        let wanted = world.ranks[rank].wanted();
        assert!(wanted.iter().all(|[wanted, consumed]| wanted == consumed));
        for (call, buffers) in calls.iter().zip(buffers) {
            let expected = call.expected(rank, ranks);
            assert_eq!(
                buffers.result(),
                Some(&expected[..]),
                "rank {rank}: {call:?}"
            );
        }
    }
}

#[test]
fn two_ranks_have_the_sums_of_their_elements() {
    for make in [copying, delayed, written, placed] {
        for (form, seed) in [(Form::Direct, 0), (Form::Shared, 100)] {
            for ahead in [1, 2, 4] {
                check(make, form, 2, ahead, seed..seed + 60);
            }
        }
    }
}

#[test]
fn more_ranks_have_them_too() {
    for ranks in [3, 4, 8] {
        for (form, seed) in [(Form::Direct, 200), (Form::Shared, 300)] {
            check(placed, form, ranks, 2, seed..seed + 40 / ranks as u64);
            check(delayed, form, ranks, 2, seed..seed + 80 / ranks as u64);
        }
    }
}

/// Short calls of all types, reductions and operations between all ranks, beside calls through
/// lanes.
#[test]
fn short_calls_go_by_packets() {
    for (make, ranks, seed) in [
        (delayed as Make, 2, 0),
        (delayed, 3, 200),
        (delayed, 4, 400),
        (copying, 2, 600),
        (placed, 2, 650),
        (over_memory, 2, 700),
        (over_sockets, 3, 800),
        (over_devices, 3, 820),
        (over_memory, 4, 900),
    ] {
        let mut world = World::new(make, Form::Shared, (ranks, 2, Form::Shared.depth(2)));
        world.has_packets = true;
        check_in(&mut world, seed..seed + 400 / ranks as u64);
    }
}

/// A record that was read before the flag may be an older one.
#[test]
fn records_may_be_read_together_with_flags() {
    if is_watched() {
        return;
    }
    for (form, seed) in [(Form::Direct, 1000), (Form::Shared, 1100)] {
        let mut world = World::new(delayed, form, (3, 2, form.depth(2)));
        world.is_at_once = true;
        check_in(&mut world, seed..seed + 40);
    }
}

#[test]
fn links_carry_them() {
    for (make, ranks) in [
        (over_memory as Make, 2),
        (over_sockets, 2),
        (over_devices, 2),
        (over_sockets, 3),
        (over_memory, 4),
    ] {
        for (form, seed) in [(Form::Direct, 400), (Form::Shared, 500)] {
            check(make, form, ranks, 2, seed..seed + 60 / ranks as u64);
        }
    }
}
