//! Nonblocking communicators: waits, time limits, and handles that NCCL writes late.

use std::time::{Duration, Instant};

use spark_ccl_nccl::{Communicator, Config, Error, Progress, RedOp, ShrinkMode, WindowKind};

use crate::{Fake, floats, stream};

const FOREVER: i32 = i32::MAX;

fn config(timeout: Duration) -> Config {
    Config {
        blocking: false,
        timeout,
        ..Config::default()
    }
}

fn patient() -> Config {
    config(Duration::from_secs(60))
}

fn hasty() -> Config {
    config(Duration::from_millis(5))
}

fn sum(comm: &Communicator) -> Result<(), Error> {
    let buffer = floats(0x1000, 8);
    comm.all_reduce(buffer, buffer, RedOp::Sum, stream())
}

#[test]
fn calls_are_waited_for() {
    let fake = Fake::new();
    fake.progress(50);
    let comm = fake.rank(&patient());
    sum(&comm).unwrap();
    assert_eq!(comm.async_error().unwrap(), Progress::Done);
    fake.library.group(|| sum(&comm)).unwrap();
    assert_eq!(comm.async_error().unwrap(), Progress::Done);
    let part = comm.split(Some(0), 0, None).unwrap().unwrap();
    assert_eq!(part.size().unwrap(), 2);
    let window = comm.register_window(floats(0x1000, 8), WindowKind::Symmetric);
    assert!(window.unwrap().is_used());
    comm.finalize().unwrap();
    let journal = fake.journal();
    assert!(
        journal.iter().all(|line| !line.contains("after the end")),
        "{journal:?}"
    );
    assert_eq!(journal.last().unwrap(), "ncclCommDestroy #1");
}

#[test]
fn another_thread_can_end_a_wait() {
    let fake = Fake::new();
    let comm = fake.rank(&patient());
    let call_timeout = comm.call_timeout();
    fake.progress(FOREVER);
    let start = Instant::now();
    std::thread::scope(|scope| {
        let caller = scope.spawn(move || sum(&comm));
        std::thread::sleep(Duration::from_millis(50));
        call_timeout.set(Duration::ZERO);
        let error = caller.join().unwrap().unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
    });
    assert!(start.elapsed() < Duration::from_secs(30));
}

#[test]
fn calls_that_report_success_early_are_waited_for() {
    let fake = Fake::new();
    let (library, id) = (fake.library, fake.library.unique_id().unwrap());
    let comm = fake.rank(&patient());
    fake.progress(3);
    let done = |comm: &Communicator| assert_eq!(comm.async_error().unwrap(), Progress::Done);
    assert!(comm.split(None, 0, None).unwrap().is_none());
    done(&comm);
    let shrunk = comm.shrink(&[0], ShrinkMode::Default, None).unwrap();
    assert_eq!(shrunk.size().unwrap(), 3);
    done(&comm.grow(6, None, None).unwrap());
    done(&Communicator::init_grown(library, 6, id, 5, &patient()).unwrap());
    let window = comm.register_window(floats(0x1000, 8), WindowKind::Symmetric);
    assert!(window.unwrap().is_used());
    done(&comm);
}

#[test]
fn ranks_without_a_color_do_not_block_a_group() {
    let fake = Fake::new();
    let comms = [(); 2].map(|()| fake.rank(&patient()));
    fake.progress(3);
    let split = |(comm, color): (&Communicator, _)| comm.split(color, 0, None);
    let parts = fake.library.group(|| {
        let all = comms.iter().zip([None, Some(0)]).map(split);
        all.collect::<Result<Vec<_>, _>>()
    });
    let [None, Some(part)] = &parts.unwrap()[..] else {
        panic!("the wrong ranks are in it");
    };
    assert_eq!(part.size().unwrap(), 2);
}

#[test]
fn calls_without_an_end_time_out() {
    let fake = Fake::new();
    let comm = fake.rank(&hasty());
    fake.progress(FOREVER);
    let start = Instant::now();
    let error = sum(&comm).unwrap_err();
    assert!(start.elapsed() >= Duration::from_millis(5));
    let text = error.to_string();
    assert!(
        text.starts_with("ncclAllReduce on rank 1: not done after "),
        "{text}"
    );
    assert!(matches!(sum(&comm), Err(Error::Unusable { .. })));
    fake.journal();
    comm.abort().unwrap();
    assert_eq!(fake.journal(), ["ncclCommAbort #1"]);
}

#[test]
fn creation_groups_and_finalize_time_out() {
    let fake = Fake::new();
    let id = fake.library.unique_id().unwrap();
    let comm = fake.rank(&hasty());
    let last = fake.rank(&hasty());
    fake.progress(FOREVER);
    let timed_out = |result: Result<(), Error>| match result.unwrap_err() {
        Error::Timeout { operation, .. } => operation,
        other => panic!("another error: {other}"),
    };
    let init = Communicator::init_rank(fake.library, 4, id, 3, &hasty());
    assert_eq!(timed_out(init.map(drop)), "ncclCommInitRankConfig");
    assert_eq!(fake.journal().last().unwrap(), "ncclCommAbort #3");
    assert_eq!(timed_out(fake.library.group(|| sum(&comm))), "ncclGroupEnd");
    assert!(matches!(sum(&comm), Err(Error::Unusable { .. })));
    assert_eq!(timed_out(last.finalize()), "ncclGroupEnd");
    assert_eq!(fake.journal().last().unwrap(), "ncclCommAbort #1");
}

#[test]
fn an_error_ends_the_wait() {
    let fake = Fake::new();
    let comm = fake.rank(&patient());
    fake.progress(3);
    fake.asynchronous(6);
    assert_eq!(
        sum(&comm).unwrap_err().code().unwrap().name(),
        "ncclRemoteError"
    );
}

#[test]
fn a_child_that_may_still_be_written_lives_as_long_as_its_parent() {
    let fake = Fake::new();
    let comm = fake.rank(&hasty());
    fake.progress(FOREVER);
    let split = comm.split(Some(0), 3, None);
    assert!(matches!(split, Err(Error::Timeout { .. })), "{split:?}");
    assert_eq!(fake.journal(), ["ncclCommSplit #1 color 0 key 3"]);
    drop(comm);
    assert_eq!(fake.journal(), ["ncclCommAbort #1", "ncclCommAbort #3"]);
}
