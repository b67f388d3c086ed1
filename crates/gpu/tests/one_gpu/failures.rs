//! Ranks that never come, and programs that do not wait for them.

use std::time::Duration;

use spark_ccl_gpu::Error;
use spark_ccl_types::{DType, Operation, ReduceOp};

use crate::graphs::captured;
use crate::place::{Case, Place};

const ABSENT: usize = 2;

fn cases() -> [Case; 2] {
    [2000, 1_000_000].map(|count| Case {
        operation: Operation::AllReduce,
        dtype: DType::F32,
        op: ReduceOp::Sum,
        count,
        offset: 0,
        in_place: false,
        seed: 3,
    })
}

/// All ranks but one make a call; `meanwhile` runs while they wait. Each gets an error that `is_right`.
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
        // SAFETY: the buffers are long enough; that a rank stays away is what is tested.
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

/// A failed rank's context works, and so does a new arena.
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
        for graph in &graphs {
            graph.launch().unwrap();
        }
        assert!(place.wait().is_err());
        is_well_again(place);
    }
}

#[test]
fn waits_can_be_ended() {
    for case in cases() {
        let Some(place) = Place::new(4, Duration::from_secs(5)) else {
            return;
        };
        let abort = || {
            std::thread::sleep(Duration::from_millis(100));
            place.ranks[0].member.abort();
        };
        without_a_rank(
            &place,
            &case,
            abort,
            |error, rank| matches!(error, Error::Aborted { rank: of, peer: ABSENT, .. } if *of == rank),
        );
        is_well_again(place);
    }
}

#[test]
fn members_can_be_dropped_while_their_kernels_wait() {
    for case in cases() {
        let Some(mut place) = Place::new(4, Duration::from_secs(60)) else {
            return;
        };
        place.prepare(&case);
        for rank in (0..4).filter(|rank| *rank != ABSENT) {
            let own = &place.ranks[rank];
            // SAFETY: the buffers are long enough; that a rank stays away is what is tested.
            unsafe {
                own.member
                    .enqueue(&place.call(&case, rank), &own.stream)
                    .unwrap();
            };
        }
        let ranks = std::mem::take(&mut place.ranks).into_iter();
        let (members, others): (Vec<_>, Vec<_>) = ranks
            .map(|rank| (rank.member, (rank.stream, rank.input, rank.output)))
            .unzip();
        drop(members);
        for (stream, ..) in &others {
            assert!(spark_ccl_cuda::is_idle(stream).unwrap());
        }
        is_well_again(place);
    }
}
