//! The checker finds planted defects.

use spark_ccl_sched::check::{Case, Contributions, check};
use spark_ccl_sched::lockstep::Window;
use spark_ccl_sched::{Algorithm, Buf, Defect, Kind, Problem, Rank, Schedule, Span, Step, Steps};
use spark_ccl_types::Operation;

/// A schedule whose steps are changed, or left out (`None`).
struct Tampered<F> {
    schedule: Schedule,
    rank: Rank,
    tamper: F,
}

impl<F: Fn(Rank, u64, Step) -> Option<Step>> Steps for Tampered<F> {
    fn may_lend(&self) -> bool {
        self.schedule.may_lend()
    }

    fn channels(&self) -> u32 {
        self.schedule.channels()
    }

    fn scratch(&self) -> u64 {
        self.schedule.scratch()
    }

    fn step(&self, channel: u32, index: u64) -> Option<Step> {
        let step = self.schedule.step(channel, index)?;
        let nothing = Step {
            kind: Kind::Copy,
            src: Span::EMPTY,
            dst: Span::EMPTY,
            ..step
        };
        Some((self.tamper)(self.rank, index, step).unwrap_or(nothing))
    }
}

fn case(operation: Operation, algorithm: Algorithm, in_place: bool) -> Case {
    Case {
        operation,
        algorithm,
        in_place,
        size: 4,
        count: 8,
        root: 0,
        chunk: 8,
        slice: 8,
    }
}

fn defect(case: Case, tamper: impl Fn(Rank, u64, Step) -> Option<Step> + Copy) -> Defect {
    let ranks: Vec<_> = (0..)
        .zip(case.schedules().unwrap())
        .map(|(rank, schedule)| Tampered {
            schedule,
            rank,
            tamper,
        })
        .collect();
    check::<Contributions, _>(&case, &ranks, case.window()).unwrap_err()
}

fn problem(case: Case, tamper: impl Fn(Rank, u64, Step) -> Option<Step> + Copy) -> Problem {
    match defect(case, tamper) {
        Defect::Data { problem, .. } => problem,
        other => panic!("{other}"),
    }
}

#[test]
fn a_missing_step_causes_a_deadlock_or_leftover_messages() {
    let chain = case(Operation::Broadcast, Algorithm::Chain, true);
    let lost = defect(chain, |rank, _, step| (rank != 1).then_some(step));
    assert!(
        matches!(&lost, Defect::Deadlock { stuck } if stuck.len() == 2),
        "{lost}"
    );
    let ignored = defect(chain, |rank, _, step| (rank != 3).then_some(step));
    assert!(
        matches!(
            ignored,
            Defect::Leftover {
                from: 2,
                to: 3,
                messages: 1,
                ..
            }
        ),
        "{ignored}"
    );
}

#[test]
fn windows_too_small_for_the_chunk_deadlock() {
    let ring = Case {
        count: 32,
        ..case(Operation::AllReduce, Algorithm::Ring, false)
    };
    let ranks = ring.schedules().unwrap();
    let window = |slots| Window { slice: 1, slots };
    // A ring has a chunk in flight, and needs one more slot to continue.
    let stopped = check::<Contributions, _>(&ring, &ranks, window(8)).unwrap_err();
    assert!(matches!(stopped, Defect::Deadlock { .. }), "{stopped}");
    check::<Contributions, _>(&ring, &ranks, window(9)).unwrap();
}

#[test]
fn a_lost_contribution_is_a_wrong_result() {
    let ring = case(Operation::AllReduce, Algorithm::Ring, false);
    let defect = defect(ring, |rank, index, step| {
        let kind = Kind::RecvCopySend;
        let lossy = Step {
            kind,
            dst: Span::output(step.src.offset, step.src.len),
            ..step
        };
        // What comes is reduced already, and so is what it sends on.
        Some(if (rank, index) == (1, 2) { lossy } else { step })
    });
    assert!(matches!(defect, Defect::Result { .. }), "{defect}");
}

#[test]
fn a_doubled_contribution_is_named() {
    let doubling = case(Operation::AllReduce, Algorithm::RecursiveDoubling, false);
    let twice = problem(doubling, |_, index, step| {
        let again = Step {
            send_to: step.send_to ^ 3,
            ..step
        };
        let from_again = Step {
            recv_from: step.recv_from ^ 3,
            ..step
        };
        Some(match index {
            2 => again,
            3 => from_again,
            _ => step,
        })
    });
    assert_eq!(twice, Problem::ReducedTwice);
}

#[test]
fn another_order_of_reduction_is_a_wrong_result() {
    let direct = case(Operation::AllReduce, Algorithm::Direct, false);
    let defect = defect(direct, |rank, _, mut step| {
        // Rank 3 swaps where it stores the contributions of ranks 0 and 1.
        if rank == 3 && step.kind == Kind::Recv && step.recv_from < 2 {
            step.dst.offset = u64::from(1 - step.recv_from) * step.dst.len;
        }
        Some(step)
    });
    assert!(matches!(defect, Defect::Result { rank: 3, .. }), "{defect}");
}

#[test]
fn reading_and_writing_the_wrong_memory_is_named() {
    let ring = case(Operation::AllReduce, Algorithm::Ring, true);
    let late = |buf| {
        move |rank, index, mut step: Step| {
            if (rank, index) == (0, 4) {
                step.kind = Kind::RecvReduceCopySend;
                step.src = Span { buf, ..step.dst };
            }
            Some(step)
        }
    };
    // The received element is complete, and the own one is either unscaled or already reduced: both
    // are wrong.
    assert_eq!(problem(ring, late(Buf::Input)), Problem::ReducedTwice);
    assert_eq!(problem(ring, late(Buf::Output)), Problem::ReadUnscaled);

    let overwritten = problem(ring, |rank, index, mut step| {
        if rank == 0 && index > 3 {
            step.kind = Kind::RecvReduceCopySend;
            step.src = Span::input(2, 2);
        }
        Some(step)
    });
    assert_eq!(overwritten, Problem::ReadOverwrittenInput);

    let reduce = case(Operation::Reduce, Algorithm::Chain, false);
    let kept = problem(reduce, |rank, _, mut step| {
        if rank == 2 {
            step.kind = Kind::RecvReduceCopySend;
            step.dst = Span::output(0, step.src.len);
        }
        Some(step)
    });
    assert_eq!(kept, Problem::OutOfBounds);

    let into_input = problem(
        case(Operation::AllGather, Algorithm::Ring, true),
        |_, _, mut step| {
            step.dst.buf = Buf::Input;
            Some(step)
        },
    );
    assert_eq!(into_input, Problem::WroteInput);
}

/// Its first reduction multiplies a contribution, and no later one does.
#[test]
fn a_contribution_is_multiplied_once() {
    let algorithms = [
        Algorithm::Ring,
        Algorithm::RecursiveDoubling,
        Algorithm::HalvingDoubling,
        Algorithm::DoubleTree,
    ];
    for algorithm in algorithms {
        let call = case(Operation::AllReduce, algorithm, false);
        for claims in [false, true] {
            let wrong = problem(call, |_, _, mut step| {
                step.receives_contribution = claims;
                Some(step)
            });
            let expected = [Problem::Unscaled, Problem::ScaledTwice][usize::from(claims)];
            assert_eq!(wrong, expected, "{algorithm:?}");
        }
    }
}

#[test]
fn overwriting_what_was_sent_is_a_race() {
    let ring = case(Operation::AllGather, Algorithm::Ring, true);
    let own_block_again = |rank: Rank, _, step: Step| {
        let own = Span::output(u64::from(rank) * 8, 8);
        Some(if rank == 1 && step.dst.len > 0 {
            Step { dst: own, ..step }
        } else {
            step
        })
    };
    assert!(matches!(
        defect(ring, own_block_again),
        Defect::Race { owner: 1, .. }
    ));
}

#[test]
fn ends_that_disagree_on_lengths_are_named() {
    let ring = case(Operation::AllGather, Algorithm::Ring, true);
    let defect = defect(ring, |rank, index, mut step| {
        if (rank, index) == (1, 0) {
            step.src.len = 3;
        }
        Some(step)
    });
    let expected = Defect::Length {
        rank: 2,
        from: 1,
        channel: 0,
        expected: 8,
        seen: 3,
    };
    assert_eq!(defect, expected);
}

#[test]
fn a_missing_signal_is_a_race() {
    let gather = case(Operation::AllGather, Algorithm::OneSided, true);
    // No rank waits until the others are done; or until they are ready. Both need the messages
    // removed on both sides, so that nothing else is wrong.
    let is_final_wait = |index: u64| index >= 3 + 9;
    let done = defect(gather, |_, index, step| {
        let is_borrowing = (3..3 + 9).contains(&index);
        let is_done_signal = is_borrowing && step.kind == Kind::Signal;
        (!is_final_wait(index) && !is_done_signal).then_some(step)
    });
    assert!(matches!(done, Defect::Race { .. }), "{done}");
    let ready = defect(gather, |_, index, step| {
        let is_ready_wait = step.kind == Kind::Wait && !is_final_wait(index);
        (index >= 3 && !is_ready_wait).then_some(step)
    });
    assert!(matches!(ready, Defect::Race { .. }), "{ready}");
}

#[test]
fn a_put_into_what_another_rank_reads_is_a_race() {
    let reduce = case(Operation::AllReduce, Algorithm::OneSided, true);
    let defect = defect(reduce, |rank, _, mut step| {
        if rank == 1 && step.kind == Kind::GetReducePut {
            step.dst.offset = 0;
        }
        Some(step)
    });
    assert!(
        matches!(defect, Defect::Race { .. } | Defect::Data { .. }),
        "{defect}"
    );
}

#[test]
fn channels_that_share_memory_are_named() {
    let tree = case(Operation::Broadcast, Algorithm::DoubleTree, true);
    let shared = problem(tree, |rank, _, mut step| {
        if rank == 3 {
            step.dst.offset = 0;
        }
        Some(step)
    });
    assert_eq!(shared, Problem::SharedByChannels);
}
