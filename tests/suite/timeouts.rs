//! A call's time is what it began with, whatever is set while it is under way.

use std::sync::Barrier;
use std::time::Duration;

use spark_ccl::{Communicator, DType, Error, Fault, Operation, Pending, UntypedCall};

use crate::ranks::each;

/// How late a late rank is.
const LATE: Duration = Duration::from_secs(2);
/// Less than that, but more than it takes to see that a call is too late.
const SHORT: Duration = Duration::from_millis(700);
/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(600);

/// Whether a call has ended because its time was over.
fn is_too_late(outcome: Result<(), Error>) -> bool {
    match outcome {
        Ok(()) => false,
        Err(Error::Failed(fault)) => matches!(*fault, Fault::TimedOut { .. }),
        Err(error) => panic!("{error}"),
    }
}

/// Rank 0 starts a call with the time `first`, then sets `then`, and waits. Rank 1 joins late.
fn change(
    first: Duration,
    then: Duration,
    start: fn(&Communicator) -> Pending<()>,
    join: fn(&Communicator) -> Result<(), Error>,
) -> bool {
    let is_over = Barrier::new(2);
    let outcomes = each(Communicator::local(2).unwrap(), |comm| {
        comm.set_timeout(first);
        if comm.rank() == 1 {
            std::thread::sleep(LATE);
            // Its own time is not what is tried.
            comm.set_timeout(LONG);
            let _ = join(&comm);
            is_over.wait();
            return false;
        }
        let pending = start(&comm);
        comm.set_timeout(then);
        let outcome = pending.wait().map_err(|failed| failed.error);
        is_over.wait();
        is_too_late(outcome)
    });
    outcomes.contains(&true)
}

fn start_barrier(comm: &Communicator) -> Pending<()> {
    comm.barrier().start().unwrap()
}

fn barrier(comm: &Communicator) -> Result<(), Error> {
    comm.barrier().run()
}

fn start_recv(comm: &Communicator) -> Pending<()> {
    comm.recv(vec![0_u8; 1], 1).start().unwrap().map(drop)
}

fn send(comm: &Communicator) -> Result<(), Error> {
    comm.send(&[1_u8], 0).run().map(drop)
}

#[test]
fn a_shorter_time_does_not_cut_calls_under_way() {
    assert!(!change(LONG, SHORT, start_barrier, barrier));
    assert!(!change(LONG, SHORT, start_recv, send));
}

#[test]
fn a_longer_time_does_not_prolong_calls_under_way() {
    assert!(change(SHORT, LONG, start_barrier, barrier));
    assert!(change(SHORT, LONG, start_recv, send));
}

/// The communicator's time is set while a thread waits in a call that it runs.
#[test]
fn calls_that_are_run_keep_their_time_as_well() {
    let is_over = Barrier::new(2);
    each(Communicator::local(2).unwrap(), |comm| {
        comm.set_timeout(SHORT);
        if comm.rank() == 1 {
            std::thread::sleep(LATE);
            is_over.wait();
            return;
        }
        std::thread::scope(|scope| {
            let runs = scope.spawn(|| comm.barrier().run());
            std::thread::sleep(SHORT / 2);
            comm.set_timeout(LONG);
            assert!(is_too_late(runs.join().unwrap()));
        });
        is_over.wait();
    });
}

#[test]
fn a_call_may_have_a_time_of_its_own() {
    let starts: [fn(&Communicator) -> Pending<()>; 3] = [
        |comm| comm.barrier().timeout(SHORT).start().unwrap(),
        |comm| {
            let recv = comm.recv(vec![0_u8; 1], 1).timeout(SHORT);
            recv.start().unwrap().map(drop)
        },
        |comm| {
            let call = UntypedCall::new(Operation::Barrier, DType::I8).timeout(SHORT);
            // SAFETY: a barrier has no memory.
            unsafe { comm.start_untyped(&call) }.unwrap()
        },
    ];
    for start in starts {
        assert!(change(LONG, LONG, start, |_| Ok(())));
    }
    let start = |comm: &Communicator| comm.barrier().timeout(LONG).start().unwrap();
    assert!(!change(SHORT, SHORT, start, barrier));
}

/// A drop waits for what is in flight, as long as that may take.
#[test]
fn a_dropped_call_keeps_its_time() {
    let is_over = Barrier::new(2);
    each(Communicator::local(2).unwrap(), |comm| {
        if comm.rank() == 0 {
            comm.set_timeout(SHORT);
            drop(start_barrier(&comm));
            comm.set_timeout(LONG);
            drop(comm);
        } else {
            is_over_of(&comm);
        }
        is_over.wait();
    });
}

/// Waits until a communicator has failed because another rank's time was over.
fn is_over_of(comm: &Communicator) {
    loop {
        if is_too_late(comm.check()) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
