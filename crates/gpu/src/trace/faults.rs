//! The checker finds faults that are planted in the kernels' operations.

use spark_ccl_sched::{Buf, Defect, Kind, Problem};
use spark_ccl_types::Operation;

use super::share::{checked, setting};
use super::{Setting, Trace, operand};
use crate::plan::Kernel;

/// Many batches, so that all slots are used again.
fn long(kernel: Kernel, operation: Operation, ranks: usize) -> Setting {
    let words = 40 * setting(kernel, operation, ranks, 1).batch();
    setting(kernel, operation, ranks, words)
}

fn defect(setting: &Setting, tamper: impl Fn(&mut [Trace])) -> Defect {
    checked(setting, false, tamper).unwrap_err()
}

#[test]
fn ranks_that_are_too_far_ahead_write_what_is_not_read_yet() {
    let one_shot = long(Kernel::OneShotPackets, Operation::AllReduce, 3);
    let led = long(Kernel::LedReduction, Operation::AllReduce, 2);
    // If a rank leads, the last round has no answer.
    for (mut setting, fits, is_too_far) in [(one_shot, 3, 4), (led, 6, 7)] {
        setting.depths.ahead = fits;
        assert_eq!(checked(&setting, false, |_| ()), Ok(()));
        setting.depths.ahead = is_too_far;
        let found = defect(&setting, |_| ());
        assert!(matches!(found, Defect::Race { .. }), "{found}");
    }
}

#[test]
fn too_few_slots_are_written_before_they_are_read() {
    for (kernel, operation) in [
        (Kernel::OneShotPackets, Operation::Reduce),
        (Kernel::TwoShotsPackets, Operation::AllReduce),
        (Kernel::SideBySidePackets, Operation::Broadcast),
    ] {
        let mut setting = long(kernel, operation, 4);
        setting.depths.slots = 5;
        let found = defect(&setting, |_| ());
        assert!(matches!(found, Defect::Race { .. }), "{found}");
    }
    let mut signed = setting(Kernel::OneShotPackets, Operation::AllReduce, 2, 0);
    signed.times = 3;
    assert_eq!(checked(&signed, false, |_| ()), Ok(()));
    signed.depths.signatures = 1;
    let found = defect(&signed, |_| ());
    assert!(matches!(found, Defect::Race { .. }), "{found}");
}

#[test]
fn what_goes_to_the_wrong_place_is_a_wrong_result() {
    let all_to_all = long(Kernel::SideBySidePackets, Operation::AllToAll, 3);
    let words = all_to_all.words();
    let swapped = defect(&all_to_all, |ranks| {
        for step in &mut ranks[1].steps {
            if step.dst.buf == Buf::Output && step.dst.offset < 2 * words {
                step.dst.offset = (step.dst.offset + words) % (2 * words);
            }
        }
    });
    assert!(
        matches!(swapped, Defect::Result { rank: 1, .. }),
        "{swapped}"
    );
    // Another warp's batch.
    let moved = defect(&all_to_all, |ranks| {
        let mut steps = ranks[1].steps.iter_mut();
        let step = steps.find(|step| step.dst.buf == Buf::Output).unwrap();
        step.dst.offset += step.dst.len;
    });
    assert!(matches!(moved, Defect::Result { .. }), "{moved}");
}

#[test]
fn another_order_of_ranks_is_a_wrong_result() {
    for kernel in [Kernel::OneShotLines, Kernel::TwoShotsLines] {
        let swapped = defect(&long(kernel, Operation::AllReduce, 4), |ranks| {
            // Rank 3 takes the operands of ranks 0 and 1 for each other's.
            for step in &mut ranks[3].steps {
                if step.kind == Kind::Recv && step.recv_from < 2 && step.dst.len > 1 {
                    step.dst.offset = u64::from(1 - step.recv_from) * step.dst.len;
                }
            }
        });
        assert!(
            matches!(swapped, Defect::Result { .. }),
            "{kernel:?}: {swapped}"
        );
    }
}

#[test]
fn what_is_done_twice_or_not_at_all_is_found() {
    let all_reduce = long(Kernel::OneShotPackets, Operation::AllReduce, 3);
    let twice = defect(&all_reduce, |ranks| {
        // Rank 0 takes what came from rank 1 for its own.
        for step in &mut ranks[0].steps {
            if step.kind == Kind::ReduceLocal {
                step.src = operand(1, step.src.len);
            }
        }
    });
    let is_twice = matches!(
        twice,
        Defect::Data {
            problem: Problem::ReducedTwice,
            ..
        }
    );
    assert!(is_twice, "{twice}");
    let lost = defect(&all_reduce, |ranks| {
        ranks[0].steps.retain(|step| step.kind != Kind::ReduceLocal);
    });
    assert!(matches!(lost, Defect::Result { rank: 0, .. }), "{lost}");
}

#[test]
fn ranks_that_wait_before_they_send_never_end() {
    let stuck = defect(
        &long(Kernel::TwoShotsLines, Operation::AllReduce, 3),
        |ranks| {
            for trace in ranks {
                let mut steps = trace.steps.iter();
                let first = steps.position(|step| step.kind == Kind::Recv).unwrap();
                let first = trace.steps.remove(first);
                trace.steps.insert(1, first);
            }
        },
    );
    assert!(matches!(stuck, Defect::Deadlock { .. }), "{stuck}");
}
