//! Ranks that run in place, together with ranks that do not.

use spark_ccl_sched::{Algorithm, Kind, Rank, Schedule, Shape, Steps, schedule};
use spark_ccl_types::Operation;

/// The peer and the length of each message sent and received, in order.
type Messages = Vec<(Option<(Rank, u64)>, Option<(Rank, u64)>)>;

fn messages(schedule: &Schedule, channel: u32) -> Messages {
    let signals = |kind| matches!(kind, Kind::Signal | Kind::Wait);
    let steps = schedule.walk(channel).map(|step| {
        let moves = |some: bool, len: u64| some && (len > 0 || signals(step.kind));
        let (sent, received) = (step.send_len(), step.recv_len());
        (
            moves(step.kind.sends(), sent).then_some((step.send_to, sent)),
            moves(step.kind.receives(), received).then_some((step.recv_from, received)),
        )
    });
    steps.filter(|step| *step != (None, None)).collect()
}

/// The messages of `shape.rank`, out of place and in place; `None` if the algorithm lacks one of
/// the two.
fn both(operation: Operation, algorithm: Algorithm, shape: Shape) -> Option<[[Messages; 2]; 2]> {
    let of = |in_place| {
        let schedule = schedule(operation, algorithm, in_place, shape).ok()?;
        Some([0, 1].map(|channel| messages(&schedule, channel)))
    };
    Some([of(false)?, of(true)?])
}

/// In-place and out-of-place ranks may therefore be mixed, except in exchanges of three ranks or
/// more, whose partners must all run in place.
#[test]
fn messages_are_the_same_in_place_except_in_all_to_all_of_three_or_more() {
    for operation in Operation::ALL {
        for &algorithm in Algorithm::of(operation) {
            let mut differ = false;
            for (size, count, root) in [(2, 1, 0), (2, 40, 1), (3, 7, 2), (5, 40, 0), (6, 41, 3)] {
                for rank in 0..size {
                    let shape = Shape {
                        rank,
                        size,
                        count,
                        root,
                        chunk: 4,
                        hosts: None,
                    };
                    let Some([out_of, within]) = both(operation, algorithm, shape) else {
                        continue;
                    };
                    let equal = out_of == within;
                    assert!(
                        equal || operation == Operation::AllToAll && size > 2,
                        "{operation} by {algorithm}, {shape:?}"
                    );
                    differ |= !equal;
                }
            }
            assert_eq!(
                differ,
                (operation, algorithm) == (Operation::AllToAll, Algorithm::Pairwise),
                "{operation} by {algorithm}"
            );
        }
    }
}
