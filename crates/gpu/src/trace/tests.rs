//! The kernels' operations are proven by the checker of schedules.

use spark_ccl_types::{InPlaceRule, Operation};

use super::share::{checked, setting};
use super::{DEPTHS, Depths, Setting};
use crate::plan::tests::OPERATIONS;
use crate::plan::{Kernel, Plan};
use crate::{Limits, Wire};

fn prove(setting: &Setting) {
    let in_place = match setting.call.operation.in_place() {
        InPlaceRule::Never => &[false][..],
        _ => &[false, true],
    };
    for &in_place in in_place {
        let proven = checked(setting, in_place, |_| ());
        assert!(
            proven.is_ok(),
            "{setting:?} {in_place}: {}",
            proven.unwrap_err()
        );
    }
}

/// The kernels for an operation of some ranks.
fn kernels(operation: Operation, ranks: usize) -> impl Iterator<Item = Kernel> {
    let all = Kernel::ALL.into_iter();
    all.filter(move |kernel| kernel.does(operation) && kernel.takes(ranks))
}

fn roots(operation: Operation, ranks: usize) -> Vec<usize> {
    if operation.is_rooted() {
        vec![0, ranks - 1]
    } else {
        vec![0]
    }
}

#[test]
fn operations_are_proven_on_both_sides_of_borders_between_batches() {
    for ranks in 2..=8 {
        for operation in OPERATIONS {
            for kernel in kernels(operation, ranks) {
                let of = |words| setting(kernel, operation, ranks, words);
                let batch = of(0).batch();
                // The last one has more rounds of a warp than there are slots.
                for words in [0, 1, batch, 2 * batch + 1, 17 * batch - 1] {
                    for root in roots(operation, ranks) {
                        let mut setting = of(words);
                        setting.call.root = root;
                        prove(&setting);
                    }
                }
            }
        }
    }
}

#[test]
fn operations_are_proven_by_the_grids_of_plans() {
    for wire in [Wire::Any, Wire::Whole, Wire::Host] {
        for (operation, ranks) in [
            (Operation::AllReduce, 2),
            (Operation::AllReduce, 3),
            (Operation::AllToAll, 3),
            (Operation::Scatter, 4),
        ] {
            for ctas in [1, 2] {
                let limits = Limits { ctas, wire };
                for words in [5, 127, 129, 1000, 4000, 9001] {
                    let plan = Plan::new(operation, 8 * words, ranks, limits).unwrap();
                    prove(&Setting {
                        plans: [plan; 2],
                        ..setting(plan.kernel, operation, ranks, words)
                    });
                }
            }
        }
    }
}

#[test]
fn led_operations_are_proven_for_any_claims() {
    for seed in 0..50 {
        for (kernel, operation) in [
            (Kernel::LedReduction, Operation::AllReduce),
            (Kernel::LedSideBySide, Operation::AllToAll),
            (Kernel::LedSideBySide, Operation::Broadcast),
        ] {
            prove(&Setting {
                seed,
                ..setting(kernel, operation, 2, 240 * (seed % 30) + 1)
            });
        }
    }
}

/// They continue each other's rounds.
#[test]
fn operations_by_kernels_in_turn_are_proven() {
    for (kernels, operation, ranks) in [
        (
            [Kernel::LedReduction, Kernel::OneShotLines],
            Operation::AllReduce,
            2,
        ),
        (
            [Kernel::LedSideBySide, Kernel::SideBySideLines],
            Operation::AllToAll,
            2,
        ),
        (
            [Kernel::LedSideBySide, Kernel::SideBySideLines],
            Operation::Broadcast,
            2,
        ),
        (
            [Kernel::OneShotPackets, Kernel::TwoShotsPackets],
            Operation::AllReduce,
            3,
        ),
        (
            [Kernel::TwoShotsQuads, Kernel::OneShotQuads],
            Operation::AllReduce,
            4,
        ),
    ] {
        for batches in 0..20 {
            let [first, second] = kernels.map(|kernel| setting(kernel, operation, ranks, 0));
            prove(&Setting {
                plans: [first.plans[0], second.plans[0]],
                times: 5,
                ..setting(kernels[0], operation, ranks, batches * first.batch() + 1)
            });
        }
    }
}

/// The proofs are of these numbers.
#[test]
fn depths_are_those_of_the_kernels() {
    let has = |header: &str, line: String| assert!(header.contains(&line), "{line}");
    let Depths {
        ahead,
        slots,
        signatures,
    } = DEPTHS;
    has(
        include_str!("../../kernels/layout.h"),
        format!("const u32 DEPTH = {slots};"),
    );
    has(
        include_str!("../../kernels/session.h"),
        "const u32 AHEAD = DEPTH / 2 - 1;".to_owned(),
    );
    assert_eq!(ahead, slots / 2 - 1);
    has(
        include_str!("../../kernels/signature.h"),
        format!("(u32)number % {signatures} * MAX_RANKS"),
    );
}
