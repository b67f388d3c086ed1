//! What several tests need.
#![allow(dead_code, reason = "each test file uses a part")]

use std::net::TcpListener;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use spark_ccl_bootstrap::{Error, Kind, Options, Purpose, Session, UniqueId};

/// Far beyond what anything here takes: it only ends a test that would hang.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(60);

pub(crate) fn soon() -> Instant {
    Instant::now() + WATCHDOG
}

pub(crate) fn options() -> Options {
    Options {
        init_timeout: WATCHDOG,
        ..Options::default()
    }
}

pub(crate) fn short(ms: u64) -> Options {
    Options {
        init_timeout: Duration::from_millis(ms),
        ..Options::default()
    }
}

pub(crate) fn purpose(kind: Kind, lane: u32) -> Purpose {
    Purpose {
        context: 77,
        kind,
        lane,
    }
}

/// Runs `work` for every argument in a thread of its own; the results in the same order.
pub(crate) fn in_parallel<A: Send + 'static, R: Send + 'static>(
    arguments: Vec<A>,
    work: impl Fn(A) -> R + Send + Sync + Clone + 'static,
) -> Vec<R> {
    let waiting: Vec<mpsc::Receiver<R>> = arguments
        .into_iter()
        .map(|argument| {
            let (sender, receiver) = mpsc::channel();
            let work = work.clone();
            std::thread::spawn(move || sender.send(work(argument)));
            receiver
        })
        .collect();
    waiting
        .into_iter()
        .map(|result| result.recv_timeout(2 * WATCHDOG).unwrap())
        .collect()
}

/// A world over sockets, its ranks threads of this process.
pub(crate) fn join_all(
    id: UniqueId,
    ranks: &[u32],
    size: u32,
    options: &Options,
) -> Vec<Result<Session, Error>> {
    let options = options.clone();
    in_parallel(ranks.to_vec(), move |rank| {
        Session::join(&id, rank, size, &options)
    })
}

/// A whole world of `size` ranks over loopback.
pub(crate) fn world(size: u32) -> Vec<Session> {
    let id = UniqueId::create(&options()).unwrap();
    let ranks: Vec<u32> = (0..size).collect();
    join_all(id, &ranks, size, &options())
        .into_iter()
        .map(Result::unwrap)
        .collect()
}

/// A port that nobody uses, most likely also in a moment.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

/// Checks that all ranks have the same error, and returns its text.
pub(crate) fn common_error(results: Vec<Result<Session, Error>>) -> (Error, String) {
    let errors: Vec<Error> = results.into_iter().map(Result::unwrap_err).collect();
    assert!(
        errors.windows(2).all(|pair| pair[0] == pair[1]),
        "{errors:#?}"
    );
    (errors[0].clone(), errors[0].to_string())
}
