//! Locks in a forked child. As it forked, its parent's threads held some, and waited for others.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use spark_ccl_log::{Condvar, Mutex};

const FORKS: usize = 10;
const THREADS: usize = 8;
const TURNS: usize = 100;
const WATCHDOG: Duration = Duration::from_secs(30);

/// Threads that take turns, each waiting for its own.
#[derive(Default)]
struct Round {
    turn: Mutex<usize>,
    changed: Condvar,
}

impl Round {
    fn take_turns(&self, number: usize, turns: usize) {
        for _ in 0..turns {
            let mut turn = self.turn.lock();
            while *turn % THREADS != number {
                turn = self.changed.wait_for(turn, Duration::from_millis(100));
            }
            *turn += 1;
            self.changed.notify_all();
        }
    }

    fn start(turns: usize) -> Vec<JoinHandle<()>> {
        let round = Arc::new(Self::default());
        let start = |number| {
            let round = Arc::clone(&round);
            std::thread::spawn(move || round.take_turns(number, turns))
        };
        (0..THREADS).map(start).collect()
    }
}

#[test]
fn a_child_has_locks_that_owe_nothing_to_its_parents_threads() {
    Round::start(usize::MAX);
    for _ in 0..FORKS {
        // SAFETY: the child uses only what it makes itself, and ends without unwinding.
        let child = match unsafe { libc::fork() } {
            0 => {
                let threads = Round::start(TURNS).into_iter();
                let fine = threads.map(JoinHandle::join).all(|ended| ended.is_ok());
                // SAFETY: `_exit` has no preconditions.
                unsafe { libc::_exit(i32::from(!fine)) }
            }
            child => child,
        };
        assert!(ends_well(child), "the child hangs, or crashed");
    }
}

/// Kills a child that hangs.
fn ends_well(child: libc::pid_t) -> bool {
    let deadline = Instant::now() + WATCHDOG;
    let mut status = 0;
    loop {
        // SAFETY: `waitpid` only writes to `status`, a local.
        let ended = unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) };
        if ended != 0 {
            return ended == child && status == 0;
        }
        if Instant::now() > deadline {
            // SAFETY: it accesses no memory, and the child has not been waited for.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
