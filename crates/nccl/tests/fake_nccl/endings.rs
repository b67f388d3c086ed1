//! Errors, and the ends of communicators.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use spark_ccl_nccl::{Communicator, Config, Error, RedOp, ShrinkMode};

use crate::{Fake, floats, stream};

fn sum(comm: &Communicator) -> Result<(), Error> {
    let buffer = floats(0x1000, 8);
    comm.all_reduce(buffer, buffer, RedOp::Sum, stream())
}

#[test]
fn an_error_has_all_that_nccl_says() {
    let fake = Fake::new();
    let comm = fake.rank(&Config::default());
    fake.fail("ncclAllReduce", 1);
    let Error::Call(call) = sum(&comm).unwrap_err() else {
        panic!("another error");
    };
    assert_eq!(
        (call.operation, call.rank, call.code.0),
        ("ncclAllReduce", Some(1), 1)
    );
    assert_eq!(
        (&*call.text, &*call.last_error),
        ("other error", "the cable is out")
    );
    // A result of a later version, which this crate does not list.
    let comm = fake.rank(&Config::default());
    fake.fail("ncclAllReduce", 77);
    assert!(
        sum(&comm)
            .unwrap_err()
            .to_string()
            .contains("(unknown result 77)")
    );
}

#[test]
fn what_another_thread_is_saying_is_text_all_the_same() {
    let fake = Fake::new();
    // SAFETY: the type is that of `fake_say` in nccl.c.
    let say = unsafe { fake.get::<extern "C" fn(i32)>("fake_say") };
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for remainder in 0..2 {
                    say(remainder);
                    // Long enough for the other thread to find a complete text now and then.
                    (0..100).for_each(|_| std::hint::spin_loop());
                }
            }
        });
        let end = Instant::now() + Duration::from_millis(300);
        let mut is_text = true;
        while is_text && Instant::now() < end {
            is_text = str::from_utf8(fake.library.last_error().as_bytes()).is_ok();
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(is_text);
    });
}

#[test]
fn after_a_failure_there_is_only_abort() {
    let fake = Fake::new();
    let comm = fake.rank(&Config::default());
    fake.fail("ncclAllReduce", 6);
    assert_eq!(
        sum(&comm).unwrap_err().code().unwrap().name(),
        "ncclRemoteError"
    );
    fake.journal();
    let error = sum(&comm).unwrap_err().to_string();
    assert!(
        error.contains("on rank 1: the communicator has failed before"),
        "{error}"
    );
    assert!(comm.split(Some(0), 0, None).is_err());
    assert!(comm.shrink(&[0], ShrinkMode::Default, None).is_err());
    assert_eq!(fake.journal(), [""; 0]);
    comm.shrink(&[0], ShrinkMode::Abort, None).unwrap();
    comm.abort().unwrap();
    assert_eq!(
        fake.journal(),
        [
            "ncclCommShrink #1 without 1 first 0 flags 1",
            "ncclCommAbort #0",
            "ncclCommAbort #1",
        ]
    );
}

#[test]
fn an_invalid_argument_changes_nothing_unless_nccl_keeps_it() {
    let fake = Fake::new();
    let comm = fake.rank(&Config::default());
    fake.fail("ncclAllReduce", 4);
    assert!(sum(&comm).is_err());
    sum(&comm).unwrap();
    // A nonblocking communicator keeps the error.
    fake.asynchronous(4);
    fake.fail("ncclAllReduce", 4);
    assert_eq!(sum(&comm).unwrap_err().code().unwrap().0, 4);
    assert!(matches!(sum(&comm), Err(Error::Unusable { .. })));
}

#[test]
fn asynchronous_errors_are_reported() {
    let fake = Fake::new();
    let comm = fake.rank(&Config::default());
    fake.asynchronous(6);
    let error = comm.async_error().unwrap_err();
    assert_eq!(error.code().unwrap().name(), "ncclRemoteError");
    assert!(matches!(comm.finalize(), Err(Error::Unusable { .. })));
    assert_eq!(
        fake.journal(),
        [
            "ncclGroupStart",
            "ncclAllReduce without a communicator",
            "ncclGroupEnd",
            "ncclCommAbort #1"
        ]
    );
}

#[test]
fn finalizing_is_one_group_and_then_the_end() {
    let fake = Fake::new();
    let comms = Communicator::init_all(fake.library, &[0, 1]).unwrap();
    fake.journal();
    Communicator::finalize_all(comms).unwrap();
    Communicator::finalize_all(Vec::new()).unwrap();
    assert_eq!(
        fake.journal(),
        [
            "ncclGroupStart",
            "ncclCommFinalize #0",
            "ncclCommFinalize #1",
            "ncclGroupEnd",
            "ncclCommDestroy #0",
            "ncclCommDestroy #1",
        ]
    );
}

#[test]
fn a_failed_end_aborts() {
    let fake = Fake::new();
    let comm = fake.rank(&Config::default());
    fake.fail("ncclCommFinalize", 2);
    assert_eq!(
        comm.finalize().unwrap_err().code().unwrap().name(),
        "ncclSystemError"
    );
    assert_eq!(fake.journal().last().unwrap(), "ncclCommAbort #1");
}

#[test]
fn dropping_aborts_once() {
    let fake = Fake::new();
    drop(fake.rank(&Config::default()));
    assert_eq!(fake.journal(), ["ncclCommAbort #1"]);
}

#[test]
fn a_revoked_one_splits_and_ends() {
    let fake = Fake::new();
    let comm = fake.rank(&Config::default());
    comm.revoke().unwrap();
    let error = sum(&comm).unwrap_err().to_string();
    assert!(error.contains("has been revoked"), "{error}");
    drop(comm.split(Some(0), 0, None).unwrap());
    comm.finalize().unwrap();
    assert_eq!(
        fake.journal(),
        [
            "ncclCommRevoke #1 flags 0",
            "ncclCommSplit #1 color 0 key 0",
            "ncclCommAbort #0",
            "ncclGroupStart",
            "ncclGroupEnd",
            "ncclCommDestroy #1",
        ]
    );
}

#[test]
fn a_failed_creation_leaks_nothing() {
    let fake = Fake::new();
    let id = fake.library.unique_id().unwrap();
    let init = || Communicator::init_rank(fake.library, 2, id, 0, &Config::default());
    fake.fail("ncclCommInitRankConfig", 4);
    assert!(
        init()
            .unwrap_err()
            .to_string()
            .contains("ncclCommInitRankConfig on rank 0: ")
    );
    assert_eq!(fake.journal().len(), 2);
    // NCCL leaves behind a communicator that must be aborted.
    fake.fail("ncclCommInitRankConfig", 2);
    assert!(init().is_err());
    assert_eq!(fake.journal().last().unwrap(), "ncclCommAbort #0");
}
