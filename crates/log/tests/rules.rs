//! The crate's promises, seen by a subscriber: where events are emitted, that a blocked subscriber
//! or pipe holds up nothing else, and that losses are counted. Each test is a process, because a
//! subscriber is for all threads.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use spark_ccl_log::{Held, Lines, Mutex, PATIENCE, RwLock, flush, spawn, tell, warn};

const WATCHDOG: Duration = Duration::from_secs(60);

/// Runs one of the parts below as a process. Returns what it has printed.
fn run(part: &str) -> String {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", part, "--nocapture"])
        .env("SPARK_TEST_PART", "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = child.stderr.take().unwrap();
    let (sender, done) = channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).unwrap();
        sender.send((child.wait().unwrap(), text)).unwrap();
    });
    let (status, text) = done.recv_timeout(WATCHDOG).expect("the process hangs");
    assert!(status.success(), "{status}: {text}");
    text
}

fn is_part() -> bool {
    std::env::var_os("SPARK_TEST_PART").is_some()
}

/// Prints each event with its thread, once it may.
struct Printer;

static MAY_PRINT: AtomicBool = AtomicBool::new(true);
/// How many events were printed, or reported as lost. Relaxed: a count.
static SEEN: AtomicUsize = AtomicUsize::new(0);

impl tracing::field::Visit for Printer {
    fn record_debug(&mut self, _: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        let thread = std::thread::current();
        let text = format!("{value:?}");
        eprintln!("{}: {text}", thread.name().unwrap_or_default());
        let lost = text.strip_suffix(" log lines are lost: they could not be written");
        let seen = lost.map_or(1, |lost| lost.parse().unwrap());
        SEEN.fetch_add(seen, Ordering::Relaxed);
    }
}

impl tracing::Subscriber for Printer {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        // Pairs with nothing: it is only waited for.
        while !MAY_PRINT.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_ne!(event.metadata().target(), "panics");
        event.record(&mut Self);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn events_wait_for_the_last_lock_and_come_from_the_thread_that_says_them() {
    let text = run("locks");
    let lines = [
        "under no lock",
        "released",
        "in the mutex",
        "in the other",
        "held",
        "last",
    ];
    let wanted = lines.map(|line| format!("locks: {line}\n")).concat();
    assert_eq!(text, wanted);
}

#[test]
#[ignore = "a process that another test starts"]
fn locks() {
    if !is_part() {
        return;
    }
    tracing::subscriber::set_global_default(Printer).unwrap();
    let (mutex, other) = (Mutex::new(()), RwLock::default());
    warn!("under no {}", "lock");
    let locked = mutex.lock();
    warn!("in the mutex");
    let read: spark_ccl_log::RwLockReadGuard<'_, ()> = other.read();
    drop(locked);
    warn!("in the other");
    let held = Held::new();
    drop(read);
    warn!("held");
    eprintln!("locks: released");
    drop(held);
    drop(mutex.try_lock().unwrap());
    warn!("last");
}

#[test]
fn events_of_own_threads_come_from_another_and_are_flushed_at_exit() {
    assert_eq!(run("own_threads"), "spark-log: of the thread\n");
}

#[test]
#[ignore = "a process that another test starts"]
fn own_threads() {
    if !is_part() {
        return;
    }
    tracing::subscriber::set_global_default(Printer).unwrap();
    let lock = std::sync::Arc::new(Mutex::new(()));
    let work = move || {
        let _locked = lock.lock();
        warn!("of the thread");
    };
    spawn("spark-own", work).unwrap().join().unwrap();
    // The process ends at once, and its exit waits.
}

#[test]
fn a_subscriber_that_panics_ends_no_thread_of_the_library() {
    let text = run("panics");
    assert!(text.ends_with("spark-log: after it\n"), "{text}");
}

#[test]
#[ignore = "a process that another test starts"]
fn panics() {
    if !is_part() {
        return;
    }
    tracing::subscriber::set_global_default(Printer).unwrap();
    let work = || {
        spark_ccl_log::say("text".to_owned(), |text| {
            tracing::warn!(target: "panics", "{text}");
        });
        warn!("after it");
    };
    spawn("spark-own", work).unwrap().join().unwrap();
}

#[test]
fn what_a_blocked_subscriber_does_not_take_is_counted_and_nobody_waits_for_it() {
    let text = run("blocked");
    assert!(text.contains(" log lines are lost"), "nothing was lost");
}

/// More events than the queue has room for.
const MANY: usize = 20_000;

#[test]
#[ignore = "a process that another test starts"]
fn blocked() {
    if !is_part() {
        return;
    }
    tracing::subscriber::set_global_default(Printer).unwrap();
    MAY_PRINT.store(false, Ordering::Relaxed);
    let work = || (0..MANY).for_each(|number| warn!("event number {number}, of some length"));
    spawn("spark-own", work).unwrap().join().unwrap();
    let since = Instant::now();
    (0..1000).for_each(|_| flush());
    // If each of them waited, they would take 200 s.
    assert!(since.elapsed() >= PATIENCE && since.elapsed() < WATCHDOG);
    MAY_PRINT.store(true, Ordering::Relaxed);
    while SEEN.load(Ordering::Relaxed) != MANY {
        assert!(since.elapsed() < WATCHDOG, "the count is wrong");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn lines_to_a_full_pipe_wait_and_are_whole() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let file = std::sync::Mutex::new(Some(std::fs::File::from(std::os::fd::OwnedFd::from(
        writer,
    ))));
    let mut lines = Lines::to_file(move || file.lock().unwrap().take());
    let line = "a line of the log\n";
    for _ in 0..10_000 {
        assert_eq!(lines.write(line.as_bytes()).unwrap(), line.len());
    }
    drop(lines);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, line.repeat(10_000));
}

#[test]
fn lines_go_to_standard_error_where_there_is_no_file_and_a_child_has_its_own_queue() {
    let text = run("forked");
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        ["of the child", "of the parent", "of the parent's child"]
    );
}

#[test]
#[ignore = "a process that another test starts"]
fn forked() {
    if !is_part() {
        return;
    }
    let mut lines = Lines::to_file(|| None);
    lines.write_all(b"of the parent\n").unwrap();
    // SAFETY: the child goes on with this thread alone. It logs by this crate, whose queue is a new
    // one in a child, and ends by `exit`: unless it panics, it never returns to the test harness.
    match unsafe { libc::fork() } {
        0 => {
            tell("of the child");
            lines.write_all(b"of the parent's child\n").unwrap();
            std::process::exit(0)
        }
        child => {
            // SAFETY: `waitpid` only writes an `int`, to a temporary that lives until it returns.
            assert_eq!(unsafe { libc::waitpid(child, &mut 0, 0) }, child);
        }
    }
}

#[test]
fn a_panic_poisons_no_lock_and_one_that_is_taken_is_looked_for_until_the_deadline() {
    let (mutex, other) = (Mutex::new(1), RwLock::default());
    let panics = || {
        let _locked = (mutex.lock(), other.write());
        panic!("with both locks");
    };
    std::thread::scope(|scope| assert!(scope.spawn(panics).join().is_err()));
    assert_eq!((*mutex.lock(), *other.read()), (1, ()));
    let (locked, written) = (mutex.lock(), other.write());
    let moment = Duration::from_millis(1);
    std::thread::scope(|scope| {
        let is_free = || mutex.try_lock().is_some() || mutex.try_lock_for(moment).is_some();
        assert!(!scope.spawn(is_free).join().unwrap());
        assert!(
            !scope
                .spawn(|| other.try_read_for(moment).is_some())
                .join()
                .unwrap()
        );
        let waits = scope.spawn(|| {
            mutex.try_lock_until(Instant::now() + WATCHDOG).is_some()
                && other.try_read_for(WATCHDOG).is_some()
        });
        drop((locked, written));
        assert!(waits.join().unwrap());
    });
}
