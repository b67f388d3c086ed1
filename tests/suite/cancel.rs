//! Calls that make communicators, and are cancelled while other ranks do not come.

use std::thread::JoinHandle;
use std::time::Instant;

use spark_ccl::{Cancel, Communicator, Error, RedOp};

use crate::processes::{place, promptly, some_time};

/// Cancels what a thread does, after some time. Returns its result, which must come promptly.
fn cancelled<T>(cancel: &Cancel, thread: JoinHandle<T>) -> T {
    std::thread::sleep(some_time(0..400));
    cancel.cancel();
    let deadline = Instant::now() + promptly();
    while !thread.is_finished() {
        assert!(Instant::now() < deadline, "it waits on");
        std::thread::yield_now();
    }
    thread.join().unwrap()
}

fn assert_cancelled<T>(outcome: Result<T, Error>) {
    let Err(error) = outcome else {
        panic!("it is there")
    };
    let is_cancelled = matches!(error, Error::Bootstrap(_));
    let text = error.to_string();
    assert!(is_cancelled && text.contains("has cancelled it"), "{text}");
}

#[test]
fn a_rank_is_cancelled_while_it_waits_for_the_table() {
    let _place = place();
    let cancel = Cancel::new();
    let builder = Communicator::builder().cancel_by(&cancel);
    let id = builder.unique_id().unwrap();
    let waits = std::thread::spawn(move || builder.connect(&id, 0, 2));
    assert_cancelled(cancelled(&cancel, waits));
}

#[test]
fn a_rank_is_cancelled_while_it_dials() {
    let _place = place();
    let cancel = Cancel::new();
    // A port where nobody listens.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    drop(taken);
    let builder = Communicator::builder().rank(1).size(2);
    let builder = builder.meet_at("127.0.0.1", port).cancel_by(&cancel);
    let dials = std::thread::spawn(move || builder.from_env());
    assert_cancelled(cancelled(&cancel, dials));
}

#[test]
fn a_rank_whose_split_is_cancelled_leaves() {
    let _place = place();
    let mut comms = Communicator::local(2).unwrap();
    let (second, first) = (comms.remove(1), comms.remove(0));
    let cancel = Cancel::new();
    let its = cancel.clone();
    let splits = std::thread::spawn(move || (first.split_unless(&its, Some(0), 0), first));
    let (outcome, first) = cancelled(&cancel, splits);
    assert_cancelled(outcome);
    assert!(first.check().is_err());
    second.check().unwrap();
    // What it had said may be there.
    let missed = match second.split(Some(0), 0) {
        Err(error) => error,
        Ok(part) => part.unwrap().barrier().run().unwrap_err(),
    };
    let missed = missed.to_string();
    assert!(
        missed.contains("rank 0 (") && missed.contains("left"),
        "{missed}"
    );
}

#[test]
fn a_shrink_that_is_cancelled_can_be_called_again() {
    let _place = place();
    let mut comms = Communicator::local(2).unwrap();
    let (second, first) = (comms.remove(1), comms.remove(0));
    let cancel = Cancel::new();
    let its = cancel.clone();
    let shrinks = std::thread::spawn(move || (first.shrink_unless(&its, &[]), first));
    let (outcome, first) = cancelled(&cancel, shrinks);
    assert_cancelled(outcome);
    let both = [first, second].map(|comm| {
        std::thread::spawn(move || {
            let comm = comm.shrink(&[]).unwrap();
            let mut one = [1_u32];
            comm.all_reduce_in_place(&mut one, RedOp::Sum)
                .run()
                .unwrap();
            (one, comm)
        })
    });
    let sums = both.map(|rank| rank.join().unwrap());
    assert!(sums.iter().all(|(sum, _)| *sum == [2]));
}
