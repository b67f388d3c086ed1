//! A forked child has a copy of the monitor, but not its thread.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::Barrier;

use common::start;

/// The child reuses the memory of the parent's threads for its own, so one of its threads soon has
/// the handle that the monitor's thread had. Dropping the copy of the monitor must not join that
/// thread.
#[test]
fn a_child_leaves_its_own_threads_alone_when_it_drops_the_monitor() {
    let mut monitor = Some(start(0, 1, Vec::new()));
    // SAFETY: the child runs on this thread alone and ends in `_exit`, so it never returns to the
    // test harness. Unless it panics, it takes no lock that another thread of the parent may have
    // held during the fork. The monitor does nothing in a forked child, and glibc keeps its
    // allocator usable there.
    let child = match unsafe { libc::fork() } {
        0 => {
            let work = std::panic::AssertUnwindSafe(|| drop_among_threads(&mut monitor));
            let fine = std::panic::catch_unwind(work).is_ok();
            // SAFETY: `_exit` takes an integer and never returns, so nothing in this process is
            // used after it.
            unsafe { libc::_exit(i32::from(!fine)) }
        }
        child => child,
    };
    let mut status = 0;
    // SAFETY: `status` is a live local of the type that waitpid writes to.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0));
}

fn drop_among_threads<T>(monitor: &mut Option<T>) {
    // More than the parent had.
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
