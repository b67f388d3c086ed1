//! A call keeps the timeout that it began with, whatever is set later.

use std::sync::mpsc::channel;
use std::sync::{Barrier, Mutex};
use std::time::Duration;

use spark_ccl::{Algorithm, Communicator, DType, Error, Fault, Operation, Pending, UntypedCall};
use spark_ccl_testing::with_enough_time;

use crate::processes::WATCHDOG;
use crate::ranks::each;

/// How late a late rank is.
const LATE: Duration = Duration::from_secs(2);
/// Shorter than that, by more than it takes to notice a timeout.
const SHORT: Duration = Duration::from_millis(700);
/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(600);

/// Whether a call has timed out.
fn is_too_late(outcome: Result<(), Error>) -> bool {
    match outcome {
        Ok(()) => false,
        Err(Error::Failed(fault)) => matches!(*fault, Fault::TimedOut { .. }),
        Err(error) => panic!("{error}"),
    }
}

/// Rank 0 starts a call with the timeout `first`, then sets `then`, and waits. Rank 1 makes the
/// same call when that has ended, or after `late`. Returns whether rank 0's call timed out.
fn is_cut(
    [first, then]: [Duration; 2],
    start: fn(&Communicator) -> Pending<()>,
    join: fn(&Communicator) -> Result<(), Error>,
    late: Duration,
) -> bool {
    let (over, is_over) = channel();
    let ends = Mutex::new((Some(over), Some(is_over)));
    let has_started = Barrier::new(2);
    let outcomes = each(Communicator::local(2).unwrap(), |comm| {
        if comm.rank() == 1 {
            let is_over = ends.lock().unwrap().1.take().unwrap();
            has_started.wait();
            // Disconnected if it has ended.
            let _: Result<(), _> = is_over.recv_timeout(late);
            // Rank 1's own timeout is not under test.
            comm.set_timeout(LONG).unwrap();
            let _ = join(&comm);
            return false;
        }
        let _over = ends.lock().unwrap().0.take();
        comm.set_timeout(first).unwrap();
        let pending = start(&comm);
        comm.set_timeout(then).unwrap();
        has_started.wait();
        is_too_late(pending.wait().map_err(|failed| failed.error))
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
    comm.send(&[1_u8], 0).run()
}

#[test]
fn a_shorter_time_does_not_cut_calls_under_way() {
    assert!(!is_cut([LONG, SHORT], start_barrier, barrier, LATE));
    assert!(!is_cut([LONG, SHORT], start_recv, send, LATE));
}

#[test]
fn a_longer_time_does_not_prolong_calls_under_way() {
    assert!(is_cut([SHORT, LONG], start_barrier, barrier, WATCHDOG));
    assert!(is_cut([SHORT, LONG], start_recv, send, WATCHDOG));
}

/// The communicator's timeout is set while a thread waits in a blocking call.
#[test]
fn calls_that_are_run_keep_their_time_as_well() {
    with_enough_time(SHORT, |limit| {
        let is_over = Barrier::new(2);
        let outcomes = each(Communicator::local(2).unwrap(), |comm| {
            if comm.rank() == 1 {
                std::thread::sleep(3 * limit);
                comm.set_timeout(LONG).unwrap();
                let _ = comm.barrier().run();
                is_over.wait();
                return false;
            }
            comm.set_timeout(limit).unwrap();
            std::thread::scope(|scope| {
                let runs = scope.spawn(|| comm.barrier().run());
                // Meanwhile, the call begins.
                std::thread::sleep(limit / 2);
                comm.set_timeout(LONG).unwrap();
                let outcome = runs.join().unwrap();
                is_over.wait();
                is_too_late(outcome)
            })
        });
        let is_cut = outcomes.contains(&true);
        is_cut
            .then_some(())
            .ok_or_else(|| "the call was begun too late".to_owned())
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
            // SAFETY: a barrier has no buffers, so no memory has to live until it is done.
            unsafe { comm.start_untyped(&call) }.unwrap()
        },
    ];
    for start in starts {
        assert!(is_cut([LONG, LONG], start, |_| Ok(()), WATCHDOG));
    }
    let start = |comm: &Communicator| comm.barrier().timeout(LONG).start().unwrap();
    assert!(!is_cut([SHORT, SHORT], start, barrier, LATE));
}

#[test]
fn no_time_at_all_is_refused() {
    let comm = Communicator::local(1).unwrap().remove(0);
    let none = Duration::ZERO;
    for outcome in [comm.set_timeout(none), comm.barrier().timeout(none).run()] {
        let error = outcome.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        assert!(error.to_string().contains("timeout of 0"), "{error}");
    }
    comm.barrier().run().unwrap();
}

type Make = fn(&Communicator) -> Result<Communicator, Error>;

/// Communicators made from one with a changed timeout.
#[test]
fn a_part_begins_with_the_time_of_the_whole() {
    let makes: [Make; 6] = [
        |comm| Ok(comm.split(Some(0), 0)?.unwrap()),
        |comm| comm.split_by(0),
        |comm| Ok(comm.subgroup(&[0, 1])?.unwrap()),
        |comm| comm.restricted(Algorithm::Ring),
        |comm| comm.shrink(&[]),
        |comm| comm.recover(),
    ];
    for make in makes {
        with_enough_time(SHORT, |limit| {
            let is_over = Barrier::new(2);
            let outcomes = each(Communicator::local(2).unwrap(), |comm| {
                comm.set_timeout(limit).unwrap();
                // It is made in calls of the whole.
                let part = make(&comm);
                if let Ok(part) = &part
                    && part.rank() == 0
                {
                    assert!(is_too_late(part.barrier().run()));
                }
                is_over.wait();
                part.map(drop)
            });
            let made: Result<(), Error> = outcomes.into_iter().collect();
            made.map_err(|error| error.to_string())
        });
    }
}

/// Dropping waits for operations in flight, up to their timeout.
#[test]
fn a_dropped_call_keeps_its_time() {
    let is_over = Barrier::new(2);
    each(Communicator::local(2).unwrap(), |comm| {
        if comm.rank() == 0 {
            comm.set_timeout(SHORT).unwrap();
            drop(start_barrier(&comm));
            comm.set_timeout(LONG).unwrap();
            drop(comm);
        } else {
            is_over_of(&comm);
        }
        is_over.wait();
    });
}

/// Waits until a communicator has failed because another rank's call timed out.
fn is_over_of(comm: &Communicator) {
    loop {
        if is_too_late(comm.check()) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
