//! Tests of helpers and their mailboxes.

use std::collections::HashSet;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};

use super::*;

/// Waits for what another thread is about to do.
fn await_that(is_so: impl Fn() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(
            since.elapsed() < Duration::from_secs(60),
            "not within a minute"
        );
        thread::yield_now();
    }
}

fn mailboxes(helpers: &Helpers) -> Vec<Arc<Mailbox<Shared<'static>>>> {
    let pool = helpers.pool.lock();
    let mailboxes = pool
        .helpers
        .iter()
        .map(|helper| Arc::clone(&helper.mailbox));
    mailboxes.collect()
}

#[test]
fn each_part_is_done_once() {
    for count in [0, 1, 2, 7] {
        let helpers = Helpers::new(count, || {});
        for parts in (0..20).cycle().take(400) {
            let done: Vec<_> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
            helpers.share(parts, &|part| {
                done[part].fetch_add(1, Ordering::Relaxed);
            });
            assert!(done.iter().all(|done| done.load(Ordering::Relaxed) == 1));
        }
    }
}

#[test]
fn memory_is_filled_once_by_parts_of_pages() {
    let helpers = Helpers::new(3, || {});
    for (bytes, least, parts) in [
        (0, 1, 0),
        (1, 1, 1),
        (PAGE, 1, 1),
        (4 * PAGE, 1, 4),
        (4 * PAGE + 1, 1, 3),
        (100_000, 64 << 10, 2),
    ] {
        let (mut room, firsts) = (vec![0_u8; bytes], Mutex::new(HashSet::new()));
        let filled = helpers.fill(&mut room, least, |first, part| {
            assert_eq!(first % PAGE, 0);
            assert!(firsts.lock().insert(first));
            for byte in part {
                *byte += 1;
            }
            Ok::<(), ()>(())
        });
        assert_eq!(filled, Ok(()));
        assert!(room.iter().all(|&byte| byte == 1), "{bytes}");
        assert_eq!(firsts.lock().len(), parts, "{bytes}");
    }
    let failed = helpers.fill(&mut [0; 3 * PAGE], 1, |first, _| match first {
        PAGE => Err(first),
        _ => Ok(()),
    });
    assert_eq!(failed, Err(PAGE));
}

/// Shares work of which the helper's part ends long after the caller's, which `ends`. Returns
/// whether it had ended when the work was over.
fn ends_late(helpers: &Helpers, ends: impl Fn() + Sync) -> bool {
    let (has_begun, has_ended) = (AtomicBool::new(false), AtomicBool::new(false));
    let shared = panic::catch_unwind(AssertUnwindSafe(|| {
        helpers.share(2, &|part| {
            if part == 0 {
                await_that(|| has_begun.load(Acquire));
                return ends();
            }
            has_begun.store(true, Release);
            thread::sleep(Duration::from_millis(30));
            has_ended.store(true, Release);
        });
    }));
    // Before anything unwinds: the other thread uses both values.
    let has_ended = has_ended.load(Acquire);
    drop(shared);
    has_ended
}

#[test]
fn the_caller_waits_for_what_a_helper_has_begun() {
    assert!(ends_late(&Helpers::new(1, || {}), || {}));
}

#[test]
fn a_caller_that_panics_waits_too() {
    assert!(ends_late(&Helpers::new(1, || {}), || panic!("on purpose")));
}

#[test]
fn a_helpers_panic_is_the_callers() {
    let (helpers, has_begun) = (Helpers::new(1, || {}), AtomicBool::new(false));
    let shared = panic::catch_unwind(AssertUnwindSafe(|| {
        helpers.share(2, &|part| {
            if part == 0 {
                return await_that(|| has_begun.load(Acquire));
            }
            has_begun.store(true, Release);
            panic!("on purpose");
        });
    }));
    assert!(shared.is_err());
    assert!(ends_late(&helpers, || {}), "the helper is still there");
}

#[test]
fn helpers_sleep_without_work_and_wake_up_for_it() {
    let helpers = Helpers::new(2, || {});
    helpers.share(3, &|_| {});
    for _ in 0..3 {
        let mailboxes = mailboxes(&helpers);
        assert_eq!(mailboxes.len(), 2);
        await_that(|| mailboxes.iter().all(|mailbox| mailbox.is_asleep()));
        assert!(ends_late(&helpers, || {}));
    }
}

#[test]
fn threads_are_started_with_the_first_work_and_joined_at_the_end() {
    let helpers = Helpers::new(2, || {});
    helpers.share(1, &|_| {});
    assert!(mailboxes(&helpers).is_empty());
    helpers.share(3, &|_| {});
    let mailboxes = mailboxes(&helpers);
    assert_eq!(mailboxes.len(), 2);
    drop(helpers);
    // A thread has its mailbox until it ends.
    assert!(
        mailboxes
            .iter()
            .all(|mailbox| Arc::strong_count(mailbox) == 1)
    );
}

#[test]
fn each_thread_begins_as_it_is_told() {
    let names = Arc::new(Mutex::new(Vec::new()));
    let helpers = Helpers::new(2, {
        let names = Arc::clone(&names);
        move || names.lock().push(thread::current().id())
    });
    assert!(names.lock().is_empty());
    for _ in 0..2 {
        helpers.share(3, &|_| {});
    }
    // Joins them.
    drop(helpers);
    let begun: HashSet<_> = names.lock().iter().copied().collect();
    assert_eq!((begun.len(), names.lock().len()), (2, 2));
    assert!(!begun.contains(&thread::current().id()));
}

#[test]
fn one_caller_has_the_helpers_and_others_do_without() {
    let (helpers, done) = (Helpers::new(1, || {}), AtomicUsize::new(0));
    helpers.share(2, &|part| {
        if part == 0 {
            helpers.share(4, &|_| {
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    assert_eq!(done.into_inner(), 4);
}

#[test]
fn a_forked_child_has_no_helpers() {
    let helpers = Helpers::new(2, || {});
    helpers.share(3, &|_| {});
    // SAFETY: the child shares work, drops the helpers, neither of which needs a thread or a lock
    // of another thread, and exits.
    match unsafe { libc::fork() } {
        0 => {
            let done = AtomicUsize::new(0);
            let child = thread::current().id();
            helpers.share(3, &|_| {
                let is_here = thread::current().id() == child;
                done.fetch_add(usize::from(is_here), Ordering::Relaxed);
            });
            drop(helpers);
            // SAFETY: `_exit` has no preconditions.
            unsafe { libc::_exit(i32::from(done.into_inner() != 3)) };
        }
        child => {
            assert!(child > 0);
            let mut status = -1;
            // SAFETY: `waitpid` only writes to `status`, a local.
            let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!((waited, status), (child, 0));
        }
    }
}
