//! What a rank must be given to join.

use std::fs::File;
use std::time::Duration;

use spark_ccl_gpu::{Error, MAX_RANKS, Member, Scratch, Settings};

use crate::place::Place;

#[test]
fn a_rank_needs_the_scratch_of_each_peer() {
    let Some(place) = Place::new(2, Duration::from_secs(5)) else {
        return;
    };
    let scratch = || Scratch::new(&place.context, 3).unwrap();
    let exported = || Some(scratch().export().unwrap());
    let given = |rank, peers| Member::join(rank, scratch(), peers, Settings::default());
    assert!(given(1, vec![exported(), None, exported()]).is_ok());
    for (rank, peers, count) in [
        (1, vec![exported(), None], 1),
        (1, vec![exported(), None, None], 1),
        (1, vec![exported(), exported(), exported()], 3),
        (1, vec![None, exported(), exported()], 2),
        (3, vec![exported(), exported(), exported()], 3),
    ] {
        let expected = Error::Peers {
            rank,
            ranks: 3,
            given: count,
        };
        assert_eq!(given(rank, peers).unwrap_err(), expected);
    }
}

#[test]
fn what_is_no_scratch_is_not_mapped() {
    let Some(place) = Place::new(2, Duration::from_secs(5)) else {
        return;
    };
    let own = || Scratch::new(&place.context, 2).unwrap();
    let file = File::open("/dev/null").unwrap().into();
    let said = Member::join(0, own(), vec![None, Some(file)], Settings::default());
    assert!(matches!(said, Err(Error::Cuda(_))), "{said:?}");
    for ranks in [0, MAX_RANKS + 1] {
        let said = Scratch::new(&place.context, ranks).unwrap_err();
        assert_eq!(said, Error::Ranks { ranks });
    }
}
