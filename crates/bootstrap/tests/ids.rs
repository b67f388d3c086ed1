//! Unique ids are cheap: they share a thread and listeners. Alone in its process: it counts both.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use spark_ccl_bootstrap::{Error, Options, Session, UniqueId};

const WATCHDOG: Duration = Duration::from_secs(60);

fn options(seconds: u64) -> Options {
    Options {
        init_timeout: Duration::from_secs(seconds),
        ..Options::default()
    }
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.trim() == "spark-ccl-root").count()
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < WATCHDOG, "never happened: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The context of a world of two: the same on its ranks, another one in other worlds.
fn world(id: UniqueId) -> u64 {
    let rank = move |rank| {
        let session = Session::join(&id, rank, 2, &options(30)).unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        session.seal(Ok(()), deadline).unwrap();
        session.derive_context(0, 0, 0)
    };
    let other = thread::spawn(move || rank(1));
    let context = rank(0);
    assert_eq!(other.join().unwrap(), context);
    context
}

#[test]
fn many_ids_share_a_thread_and_listeners() {
    let before = descriptors();
    let id = |seconds| UniqueId::create(&options(seconds));
    let ids: Vec<UniqueId> = (0..200).map(|_| id(60).unwrap()).collect();
    // The listener, the thread's bell and spare descriptor; and whatever else the process opens
    // meanwhile.
    assert!(
        descriptors() <= before + 20,
        "{before} -> {}",
        descriptors()
    );
    // A new thread names itself.
    until("the thread", || threads() > 0);
    assert_eq!(threads(), 1);
    assert!(ids.windows(2).all(|pair| pair[0] != pair[1]));

    assert_ne!(world(ids[3]), world(ids[150]));
    // The other worlds' ranks have yet to come; this one's are there already.
    let begin = Instant::now();
    let error = Session::join(&ids[3], 1, 2, &options(60)).unwrap_err();
    assert!(matches!(error, Error::Expired(_)), "{error}");
    assert!(error.to_string().contains("have met already"), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(30));

    // A secret chosen by the ranks may be that of several worlds; listeners of their own tell them
    // apart.
    let secret = spark_ccl_bootstrap::Secret::from_text(b"a secret");
    let [one, two] = [0, 1].map(|_| UniqueId::serve(Some(&secret), &options(60)).unwrap());
    assert_ne!(world(one), world(two));

    // The number of ids of a process is bounded.
    let refused = (0..10_000).find_map(|_| id(1).err()).unwrap();
    assert!(refused.to_string().contains("4096 unique ids"), "{refused}");
    until("room for another one", || id(1).is_ok());
    assert_ne!(world(ids[4]), world(ids[5]));
}

/// Runs in a process of its own: the test above counts threads.
#[test]
fn the_thread_and_its_listeners_end_with_the_last_id() {
    const ALONE: &str = "SPARK_CCL_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        alone.args([
            "--exact",
            "the_thread_and_its_listeners_end_with_the_last_id",
        ]);
        let output = alone.env(ALONE, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{text}"
        );
        return;
    }
    let mut left = Vec::new();
    for _ in 0..3 {
        let address = UniqueId::create(&options(1)).unwrap().addresses()[0];
        let other = UniqueId::create(&options(1)).unwrap();
        assert_eq!(other.addresses(), [address]);
        // A thread names itself a while after it began, so the absence of its name proves little.
        until("the end of the listener", || {
            TcpListener::bind(address).is_ok()
        });
        until("the end of the thread", || threads() == 0);
        left.push(descriptors());
    }
    // The first one may have opened what the process keeps.
    assert_eq!(left[1], left[2], "{left:?}");
}
