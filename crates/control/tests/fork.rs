//! A forked child has a copy of the monitor, and none of its threads.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::Barrier;

use common::start;

/// The system takes the memory of the parent's threads for the child's own, so that one of them soon goes by the name
/// that the monitor's had. Whoever takes the copy of the monitor down must not mean that one.
#[test]
fn a_child_leaves_its_own_threads_alone_when_it_drops_the_monitor() {
    let mut monitor = Some(start(0, 1, Vec::new()));
    // SAFETY: the child goes on with this thread alone, and never returns to the test harness.
    let child = match unsafe { libc::fork() } {
        0 => {
            let work = std::panic::AssertUnwindSafe(|| drop_among_threads(&mut monitor));
            let fine = std::panic::catch_unwind(work).is_ok();
            // SAFETY: ends this process.
            unsafe { libc::_exit(i32::from(!fine)) }
        }
        child => child,
    };
    let mut status = 0;
    // SAFETY: the status is written to a local.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0));
}

fn drop_among_threads<T>(monitor: &mut Option<T>) {
    // More than the parent has had.
    const THREADS: usize = 16;
    let dropped = Barrier::new(THREADS + 1);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| scope.spawn(|| dropped.wait()))
            .collect();
        drop(monitor.take());
        dropped.wait();
        for thread in threads {
            thread.join().unwrap();
        }
    });
}
