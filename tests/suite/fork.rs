//! Processes that fork: their children are no part of the communicator, and cannot harm it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, WaitOptions, waitpid};
use spark_ccl::{Algorithm, Communicator, Error, Pending, RedOp, Registered};

use crate::processes::{WATCHDOG, assert_all_ok, assert_contains, assert_names, place, world};

const SHM: (&str, &str) = ("SPARK_CCL_SHM", "1");
const TCP: (&str, &str) = ("SPARK_CCL_SHM", "0");

/// The objects of a rank that its child inherits.
pub(crate) struct Inherited<'a> {
    pub(crate) communicator: &'a mut Option<Arc<Communicator>>,
    pub(crate) registered: &'a mut Option<Registered<f32>>,
}

/// The content of the parent's registered memory.
const FILL: f32 = 3.0;

/// Has a child of this rank do something. Returns whether all was well, once it has ended.
pub(crate) fn fork(what: &str, mut inherited: Inherited<'_>) -> bool {
    if let Some(registered) = inherited.registered {
        registered.fill(FILL);
    }
    let own = Communicator::local(1).unwrap().remove(0);
    let waits = own.recv(vec![0_u8; 1], 0).start().unwrap();
    // SAFETY: the child goes on with this thread alone, and never returns to the test harness.
    let child = match unsafe { libc::fork() } {
        0 => {
            let child = || child(what, &mut inherited) && does_not_wait_for(waits);
            let work = std::panic::AssertUnwindSafe(child);
            let fine = std::panic::catch_unwind(work).unwrap_or(false);
            // SAFETY: `_exit` has no preconditions.
            unsafe { libc::_exit(i32::from(!fine)) }
        }
        pid => Pid::from_raw(pid).unwrap(),
    };
    own.send(&[1_u8], 0).run().unwrap();
    assert_eq!(waits.wait().unwrap(), [1]);
    if what == "sleep" {
        return true;
    }
    let deadline = Instant::now() + WATCHDOG;
    loop {
        if let Some((_, status)) = waitpid(Some(child), WaitOptions::NOHANG).unwrap() {
            let registered = inherited.registered.as_ref();
            let has_own =
                |own: &Registered<f32>| own.iter().all(|value| value.to_bits() == FILL.to_bits());
            let is_untouched = registered.is_none_or(has_own);
            return is_untouched && status.exit_status() == Some(0);
        }
        assert!(Instant::now() < deadline, "the child does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn child(what: &str, inherited: &mut Inherited<'_>) -> bool {
    match what {
        "sleep" => sleep_until_the_test_ends(),
        "drop" => {
            inherited.registered.take();
            inherited.communicator.take();
            true
        }
        // Exits like main of a program that forgot its fork.
        "return" => {
            inherited.registered.take();
            inherited.communicator.take();
            std::process::exit(0)
        }
        "exit" => std::process::exit(0),
        "use" => {
            // The child's writes stay in its own memory.
            let is_empty = inherited.registered.as_mut().is_none_or(|registered| {
                let is_empty = registered.iter().all(|&value| value == 0.0);
                registered.fill(4.0);
                is_empty
            });
            let communicator = inherited.communicator.take().unwrap();
            let refused = every_call_is_refused(&communicator);
            communicator.abort("a child has no say");
            let finalized = Arc::into_inner(communicator).unwrap().finalize();
            is_empty && refused && is_refused(&finalized) && makes_one_of_its_own()
        }
        _ => panic!("{what:?} is nothing that a child does"),
    }
}

/// Whether an operation of the parent counts as done, beside one in flight.
fn does_not_wait_for(parents: Pending<Vec<u8>>) -> bool {
    let own = Communicator::local(1).unwrap().remove(0);
    let waits = own.recv(vec![0_u8; 1], 0).start().unwrap();
    let all = [waits, parents];
    let first = Pending::wait_any(&all);
    own.send(&[1_u8], 0).run().unwrap();
    first == Some(1) && all[1].wait_for(Duration::MAX)
}

/// Sleeps until nobody can give its parent orders any more.
fn sleep_until_the_test_ends() -> bool {
    let stdin = std::io::stdin();
    let mut wait = [PollFd::new(&stdin, PollFlags::empty())];
    poll(&mut wait, None).is_ok()
}

fn is_refused<T>(result: &Result<T, Error>) -> bool {
    let here = std::process::id();
    matches!(result, Err(Error::Forked(forked)) if forked.here == here && forked.owner != here)
}

fn every_call_is_refused(communicator: &Communicator) -> bool {
    let mut values = [1_i32; 8];
    let refused = [
        is_refused(&communicator.barrier().run()),
        is_refused(
            &communicator
                .all_reduce_in_place(&mut values, RedOp::Sum)
                .run(),
        ),
        is_refused(&communicator.send(&values[..], 1).run()),
        is_refused(&communicator.check()),
        is_refused(&communicator.set_timeout(Duration::from_secs(1))),
        is_refused(&communicator.split(Some(0), 0)),
        is_refused(&communicator.subgroup(&[0])),
        is_refused(&communicator.restricted(Algorithm::Ring)),
        is_refused(&communicator.alloc::<i32>(8)),
    ];
    let owned = communicator
        .all_reduce_in_place(vec![1_i32; 8], RedOp::Sum)
        .start();
    let started = is_refused(&owned.map(drop).map_err(|failed| failed.error));
    let scoped = communicator.scope(|scope| {
        let call = communicator.all_reduce_in_place(&mut values, RedOp::Sum);
        call.start_in(scope).map(drop)
    });
    let memory_works = communicator.register(vec![1_i32; 8])[7] == 1;
    started && is_refused(&scoped) && memory_works && refused == [true; 9]
}

fn makes_one_of_its_own() -> bool {
    let ranks = Communicator::local(2).unwrap();
    let reduce = |rank: Communicator| {
        let mut values = [1_i32; 1000];
        rank.all_reduce_in_place(&mut values, RedOp::Sum).run()?;
        rank.finalize()?;
        Ok::<_, Error>(values == [2; 1000])
    };
    let threads = ranks
        .into_iter()
        .map(|rank| std::thread::spawn(move || reduce(rank)));
    let threads: Vec<_> = threads.collect();
    threads
        .into_iter()
        .all(|thread| matches!(thread.join(), Ok(Ok(true))))
}

/// The child sleeps, as Python's workers do most of the time.
#[test]
fn a_rank_whose_child_lives_on_is_known_to_have_died() {
    let _place = place();
    for transport in [SHM, TCP] {
        let mut ranks = world(3, &[transport]);
        assert_all_ok(&mut ranks, "call f32 all_reduce sum 1000");
        assert_eq!(ranks[1].ask("fork sleep"), "ok");
        let pid = ranks[1].pid();
        ranks[0].order("call barrier");
        ranks[1].kill();
        for rank in [0, 2] {
            if rank == 2 {
                ranks[rank].order("call barrier");
            }
            let text = ranks[rank].hear();
            assert_names(&text, 1, pid);
            assert_contains(&text, &["died"]);
        }
    }
}

#[test]
fn a_child_that_uses_or_drops_its_copy_harms_nobody() {
    let _place = place();
    for transport in [SHM, TCP] {
        let mut ranks = world(2, &[transport]);
        assert_all_ok(&mut ranks, "call f32 alloc 1000");
        assert_all_ok(&mut ranks, "keep 1000");
        for what in ["drop", "return", "exit", "use"] {
            assert_eq!(ranks[0].ask(&format!("fork {what}")), "ok", "{what}");
            assert_all_ok(&mut ranks, "check");
            for count in [1, 1000, 1_000_000] {
                assert_all_ok(&mut ranks, &format!("call f32 all_reduce sum {count}"));
            }
        }
        assert_all_ok(&mut ranks, "finalize");
    }
}
