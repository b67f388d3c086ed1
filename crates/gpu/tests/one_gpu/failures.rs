//! Ranks that never come, and programs that do not wait for them.

use std::time::Duration;

use spark_ccl_gpu::Error;
use spark_ccl_types::{DType, Operation, ReduceOp};

use crate::graphs::{captured, launch};
use crate::place::{Case, GUARD, Place};

const ABSENT: usize = 2;

fn cases() -> [Case; 2] {
    [2000, 1_000_000].map(|count| Case {
        operation: Operation::AllReduce,
        dtype: DType::F32,
        op: ReduceOp::Sum,
        root: 0,
        count,
        offset: 0,
        in_place: false,
        seed: 3,
    })
}

/// All ranks but one make a call; `meanwhile` runs while they wait. Each gets an error that
/// `is_right`.
fn without_a_rank(
    place: &Place,
    case: &Case,
    meanwhile: impl FnOnce(),
    is_right: impl Fn(&Error, usize) -> bool,
) {
    place.prepare(case);
    let present = || (0..place.ranks.len()).filter(|rank| *rank != ABSENT);
    let call = |rank: usize| {
        let own = &place.ranks[rank];
        // SAFETY: `place` keeps the rank's buffers until its stream was waited for. They have
        // `ROOM`, which `prepare` has found to be enough for the case, and only this stream uses
        // them. The rank that stays away writes nothing, and the others end by their patience.
        unsafe { own.member.enqueue(&place.call(case, rank), &own.stream) }
    };
    present().for_each(|rank| call(rank).unwrap());
    meanwhile();
    for rank in present() {
        place.ranks[rank].stream.synchronize().unwrap();
        let error = place.ranks[rank].member.check().unwrap_err();
        assert!(is_right(&error, rank), "{error}");
        assert_eq!(call(rank).unwrap_err(), error);
    }
}

/// A failed rank's context works, and so do new ranks.
fn is_well_again(place: Place) {
    drop(place);
    let place = Place::new(4, Duration::from_secs(5)).unwrap();
    for case in cases() {
        place.run(&case, None);
    }
}

#[test]
fn a_rank_that_never_comes_is_named() {
    for case in cases() {
        let Some(place) = Place::new(4, Duration::from_secs(1)) else {
            return;
        };
        let graphs = captured(&place, &[case, case]);
        without_a_rank(
            &place,
            &case,
            || {},
            |error, rank| matches!(error, Error::Late { rank: of, peer: ABSENT, .. } if *of == rank),
        );
        // Kernels in graphs do nothing any more, also that of the rank which comes now.
        launch(&graphs);
        assert!(place.wait().is_err());
        is_well_again(place);
    }
}

/// The other ranks' waits end when their patience does.
#[test]
fn a_rank_ends_its_own_waits() {
    const ABORTS: usize = 1;
    for case in cases() {
        let Some(place) = Place::new(4, Duration::from_secs(2)) else {
            return;
        };
        let abort = || {
            std::thread::sleep(Duration::from_millis(100));
            place.ranks[ABORTS].member.abort();
        };
        without_a_rank(&place, &case, abort, |error, rank| match error {
            Error::Aborted { rank: of, peer, .. } => [*of, rank, *peer] == [ABORTS, ABORTS, ABSENT],
            Error::Late { rank: of, peer, .. } => *of == rank && *of != ABORTS && *peer == ABSENT,
            _ => false,
        });
        is_well_again(place);
    }
}

/// A rank that was told to stop before its graph is launched.
#[test]
fn graphs_write_nothing_after_the_end() {
    const STOPPED: usize = 1;
    for case in cases() {
        let Some(place) = Place::new(2, Duration::from_secs(1)) else {
            return;
        };
        let graphs = captured(&place, &[case, case]);
        place.prepare(&case);
        place.ranks[STOPPED].member.abort();
        launch(&graphs);
        for own in &place.ranks {
            own.stream.synchronize().unwrap();
        }
        let said = place.ranks[STOPPED].member.check();
        assert_eq!(said, Err(Error::Ended { rank: STOPPED }));
        let said = place.ranks[0].member.check();
        assert!(
            matches!(said, Err(Error::Late { peer: STOPPED, .. })),
            "{said:?}"
        );
        let mut seen = vec![0; case.block()];
        let output = place.call(&case, STOPPED).output;
        // SAFETY: the rank's output has `ROOM` from `output` on, as `prepare` has checked for this
        // case, and `seen` takes any bytes. All streams were waited for, so no kernel writes it.
        unsafe { place.copies.read(output, &mut seen).unwrap() };
        assert!(seen.iter().all(|&byte| byte == GUARD));
        is_well_again(place);
    }
}

#[test]
fn patience_can_be_shortened_while_graphs_wait() {
    for case in cases() {
        let Some(place) = Place::new(4, Duration::from_secs(3600)) else {
            return;
        };
        place.prepare(&case);
        let mut graphs = captured(&place, &[case]);
        drop(graphs.remove(ABSENT));
        launch(&graphs);
        for own in &place.ranks {
            own.member.set_patience(Duration::from_millis(200));
        }
        for (rank, own) in place.ranks.iter().enumerate() {
            own.stream.synchronize().unwrap();
            let said = own.member.check();
            let is_late = matches!(
                said,
                Err(Error::Late { peer: ABSENT, seconds, .. }) if (seconds - 0.2).abs() < 1e-9
            );
            assert_eq!(is_late, rank != ABSENT, "{said:?}");
        }
        is_well_again(place);
    }
}

#[test]
fn ranks_that_do_not_agree_are_named_with_what_they_have_signed() {
    const ODD: usize = 1;
    for case in cases() {
        for odd_count in [case.count, 0, case.count / 2] {
            let Some(place) = Place::new(3, Duration::from_secs(20)) else {
                return;
            };
            place.run(&case, None);
            let words = |rank: usize| [u64::from(rank == ODD), 7];
            for (rank, own) in place.ranks.iter().enumerate() {
                let mut call = place.call(&case, rank);
                call.words = words(rank);
                call.count = if rank == ODD { odd_count } else { case.count };
                // SAFETY: `place` keeps the rank's buffers until its stream was waited for. They
                // have `ROOM`, enough for the case, which `run` has checked, and for fewer
                // elements. Only this stream uses them. A kernel that finds other words at a peer
                // ends before it copies.
                unsafe { own.member.enqueue(&call, &own.stream).unwrap() };
            }
            for (rank, own) in place.ranks.iter().enumerate() {
                own.stream.synchronize().unwrap();
                let error = own.member.check().unwrap_err();
                let Error::Mismatch { peer, .. } = error else {
                    panic!("{error}");
                };
                assert_ne!(rank == ODD, peer == ODD, "{error}");
                let expected = Error::Mismatch {
                    rank,
                    peer,
                    own: words(rank),
                    theirs: words(peer),
                    operation: 2,
                };
                assert_eq!(error, expected);
            }
            is_well_again(place);
        }
    }
}

#[test]
fn a_member_can_be_dropped_while_its_kernel_waits() {
    for case in cases() {
        let Some(mut place) = Place::new(4, Duration::from_secs(3600)) else {
            return;
        };
        place.prepare(&case);
        let call = place.call(&case, 0);
        let rank = place.ranks.remove(0);
        // SAFETY: `rank` keeps its buffers, which have `ROOM`, to the end of this block, and the
        // drop of its member waits for the kernel. No other rank launches one, so nothing else uses
        // the buffers.
        unsafe { rank.member.enqueue(&call, &rank.stream).unwrap() };
        drop(rank.member);
        assert!(spark_ccl_cuda::is_idle(&rank.stream).unwrap());
        is_well_again(place);
    }
}

/// A rank's exported memory stays, so that the stores of its peers go somewhere.
#[test]
fn ranks_can_write_to_one_that_has_ended() {
    for case in cases() {
        let Some(mut place) = Place::new(4, Duration::from_secs(1)) else {
            return;
        };
        place.run(&case, None);
        drop(place.ranks.pop());
        for (rank, own) in place.ranks.iter().enumerate() {
            // SAFETY: `place` keeps the rank's buffers until its stream was waited for. They have
            // `ROOM`, enough for the case, which `run` has checked, and only this stream uses them.
            // The rank that has ended keeps its scratch, as long as peers have it.
            unsafe {
                own.member
                    .enqueue(&place.call(&case, rank), &own.stream)
                    .unwrap();
            };
        }
        for own in &place.ranks {
            own.stream.synchronize().unwrap();
            let said = own.member.check();
            assert!(matches!(said, Err(Error::Late { peer: 3, .. })), "{said:?}");
        }
        is_well_again(place);
    }
}
