//! The arguments that a rank needs to join.

use std::fs::File;
use std::time::Duration;

use spark_ccl_gpu::{Error, MAX_RANKS, Member, Scratch, Settings};

use crate::host_memory::{file, registered};
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

#[test]
fn memory_of_the_host_must_be_long_enough() {
    let Some(place) = Place::new(2, Duration::from_secs(5)) else {
        return;
    };
    let needed = Scratch::bytes_in_host(2);
    let block = |bytes| registered(&place.context, &file(bytes), bytes);
    let short = needed - 4096;
    let expected = Error::HostScratch {
        given: short,
        needed,
    };
    let refused = Scratch::in_host(&place.context, 2, block(short)).unwrap_err();
    assert_eq!(refused.to_string(), expected.to_string());
    let joined = |peer| {
        let own = Scratch::in_host(&place.context, 2, block(needed)).unwrap();
        Member::join_in_host(0, own, vec![None, Some(peer)], Settings::default())
    };
    let refused = joined(block(short)).unwrap_err();
    assert_eq!(refused.to_string(), expected.to_string());
    assert!(joined(block(needed)).is_ok());
}
