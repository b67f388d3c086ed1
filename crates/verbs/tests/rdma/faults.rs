//! Tests of failures between two ends, and of how each end learns of them.

use spark_ccl_verbs::{CompletionError, PairState, Piece, QueuePair, Remote, Request, Rts, Status};

use crate::ends::{BYTES, End, connected, test_ports};
use crate::kernel::Ends;

/// Checks that the next completion is a failure with this status and text.
fn fails<Q>(end: &End<Q>, status: Status, words: &str) -> CompletionError {
    let error = end.next().expect_err("the request succeeded");
    assert_eq!(error.status, status, "{error}");
    assert!(error.to_string().contains(words), "{error}");
    error
}

fn state(end: &End<QueuePair<Rts>>) -> PairState {
    end.pair.query_state().unwrap()
}

#[test]
fn a_wrong_key_of_the_peer() {
    let Some((mut one, mut other)) = connected() else {
        return;
    };
    other.receive(9, other.piece(0, 64));
    let Remote { addr, rkey } = other.remote(0);
    one.write(
        1,
        one.piece(0, 64),
        Remote {
            addr,
            rkey: rkey ^ 0x55,
        },
    );
    one.write(2, one.piece(0, 64), other.remote(0));
    let error = fails(&one, Status::RemoteAccess, "its region is gone");
    assert_eq!((error.wr_id, error.qp_num), (1, one.pair.number()));
    assert_eq!(fails(&one, Status::Flushed, "first failure").wr_id, 2);
    assert_eq!(fails(&other, Status::Flushed, "first failure").wr_id, 9);
    assert_eq!(
        (state(&one), state(&other)),
        (PairState::Error, PairState::Error)
    );
}

#[test]
fn a_read_with_a_wrong_key() {
    let Some((mut one, other)) = connected() else {
        return;
    };
    let Remote { addr, rkey } = other.remote(0);
    let piece = one.piece(0, 64);
    let mut batch = one.pair.batch();
    // SAFETY: the memory is never freed, and is only accessed through raw pointers.
    unsafe {
        let from = Remote {
            addr,
            rkey: rkey ^ 0x55,
        };
        batch
            .read(Request::new(1).signalled(), &[piece], from)
            .unwrap();
    }
    batch.post().unwrap();
    fails(&one, Status::RemoteAccess, "refused access");
}

#[test]
fn a_region_of_the_peer_that_is_gone() {
    let Some((mut one, other)) = connected() else {
        return;
    };
    let gone = other.remote(0);
    let End { region, pair, .. } = other;
    region.deregister().unwrap();
    one.write(1, one.piece(0, 64), gone);
    fails(&one, Status::RemoteAccess, "its region is gone");
    drop(pair);
}

#[test]
fn beyond_the_end_of_a_region() {
    let Some((mut one, other)) = connected() else {
        return;
    };
    one.write(1, one.piece(0, 200), other.remote(BYTES - 100));
    fails(
        &one,
        Status::RemoteAccess,
        "does not contain all of the memory",
    );
    assert_eq!(other.get(BYTES - 100, 100), [0; 100]);
}

#[test]
fn a_wrong_key_here() {
    let Some((mut one, other)) = connected() else {
        return;
    };
    let piece = Piece::new(one.region.start(), 64, one.region.lkey() ^ 0x55);
    one.write(1, piece, other.remote(0));
    let error = one.next().unwrap_err();
    let ends = Ends(
        Status::LocalOperation,
        Status::Flushed,
        Status::LocalProtection,
    );
    assert!(ends.include(&one.test_port, error.status), "{error}");
    assert!(error.to_string().contains("local key"), "{error}");
}

#[test]
fn a_receive_that_is_too_short() {
    let Some((mut one, mut other)) = connected() else {
        return;
    };
    other.receive(9, other.piece(0, 64));
    one.send(1, one.piece(0, 4096));
    let error = one.next().unwrap_err();
    let (soft, hard) = (Status::RemoteOperation, Status::RemoteInvalid);
    assert!(
        Ends(soft, soft, hard).include(&one.test_port, error.status),
        "{error}"
    );
    let error = other.next().unwrap_err();
    assert_eq!(error.wr_id, 9);
    let (soft, hard) = (Status::LocalOperation, Status::LocalLength);
    assert!(
        Ends(soft, soft, hard).include(&other.test_port, error.status),
        "{error}"
    );
    assert!(error.to_string().contains("receive"), "{error}");
}

#[test]
fn no_receive_at_all() {
    let Some((mut one, _other)) = connected() else {
        return;
    };
    one.send(1, one.piece(0, 64));
    fails(&one, Status::ReceiverNotReady, "posts receives");
}

#[test]
fn a_wrong_queue_pair_number() {
    let Some((here, there)) = test_ports() else {
        return;
    };
    let (one, other) = (End::new(&here), End::new(&there));
    let (mut to_other, to_one) = (other.peer(), one.peer());
    to_other.qp_num ^= 0x100;
    let (mut one, other) = (one.connect(&to_other), other.connect(&to_one));
    one.write(1, one.piece(0, 64), other.remote(0));
    fails(
        &one,
        Status::RetryExceeded,
        "queue pair number that was exchanged",
    );
}

#[test]
fn a_peer_that_never_connected() {
    let Some((here, there)) = test_ports() else {
        return;
    };
    let (one, other) = (End::new(&here), End::new(&there));
    let mut one = one.connect(&other.peer());
    one.write(1, one.piece(0, 64), other.remote(0));
    fails(&one, Status::RetryExceeded, "never connected");
}

#[test]
fn a_peer_in_the_error_state() {
    let Some((mut one, other)) = connected() else {
        return;
    };
    let other = other.map(|pair| pair.into_failed().unwrap());
    one.write(1, one.piece(0, 64), other.remote(0));
    fails(&one, Status::RetryExceeded, "the peer is gone");
    assert_eq!(other.get(0, 64), [0; 64]);
}

#[test]
fn the_error_state_ends_what_is_posted() {
    let Some((one, mut other)) = connected() else {
        return;
    };
    for id in 0..3 {
        other.receive(id, other.piece(0, 64));
    }
    let other = other.map(|pair| pair.into_failed().unwrap());
    for id in 0..3 {
        assert_eq!(
            fails(&other, Status::Flushed, "moved to the error state").wr_id,
            id
        );
    }
    drop(one);
}

#[test]
fn more_than_the_queue_holds() {
    let Some((_one, mut other)) = connected() else {
        return;
    };
    // A device may hold more than it reports.
    let error = (0..100_000).find_map(|id| {
        let mut receives = other.pair.receives();
        // SAFETY: the receive has no memory.
        unsafe { receives.receive(id, &[]) }.unwrap();
        receives.post().err()
    });
    let error = error.expect("the queue never filled");
    assert_eq!(error.posted, 0);
    assert!(
        error.to_string().contains("poll completions first"),
        "{error}"
    );
}
