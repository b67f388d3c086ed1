//! Test support shared by several test binaries.
#![allow(dead_code, reason = "each test file uses a part")]

use std::io::{Read, Write};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket};
use spark_ccl_bootstrap::{Error, Options, Session, StreamId, StreamKind, UniqueId, Via};

/// Far longer than anything here takes: only ends a test that hangs.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(60);

pub(crate) fn soon() -> Instant {
    Instant::now() + WATCHDOG
}

pub(crate) fn options() -> Options {
    within(WATCHDOG)
}

pub(crate) fn within(limit: Duration) -> Options {
    Options {
        init_timeout: limit,
        ..Options::default()
    }
}

pub(crate) fn stream_id(kind: StreamKind, number: u32) -> StreamId {
    StreamId {
        context: 77,
        kind,
        number,
    }
}

/// Runs `work` for every argument on a thread of its own. Returns the results in the same order.
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

/// A world connected over sockets, whose ranks are threads of this process.
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

/// Checks that all ranks have the same error, and returns its text.
pub(crate) fn common_error(results: Vec<Result<Session, Error>>) -> (Error, String) {
    same_error(results).unwrap()
}

/// The error that all ranks have, and its text; `Err` with all of them if they differ.
pub(crate) fn same_error(results: Vec<Result<Session, Error>>) -> Result<(Error, String), String> {
    let errors: Vec<Error> = results.into_iter().map(Result::unwrap_err).collect();
    if errors.iter().any(|error| *error != errors[0]) {
        return Err(format!("{errors:#?}"));
    }
    Ok((errors[0].clone(), errors[0].to_string()))
}

pub(crate) const TCP: Via = Via::Tcp {
    source: None,
    target: None,
};

/// Sends a number one way and another back.
fn exchange(stream: &Socket, say: u32) -> u32 {
    let mut stream = stream;
    stream.set_read_timeout(Some(WATCHDOG)).unwrap();
    stream.write_all(&say.to_le_bytes()).unwrap();
    let mut heard = [0; 4];
    stream.read_exact(&mut heard).unwrap();
    u32::from_le_bytes(heard)
}

/// Every rank connects to all higher ones, with both kinds of sockets; then all seal.
pub(crate) fn mesh(session: &Session) {
    let me = session.rank();
    for (number, via) in [(0, TCP), (1, Via::Unix)] {
        for peer in 0..session.size() {
            let stream_id = stream_id(StreamKind::Control, number);
            let stream = match peer.cmp(&me) {
                std::cmp::Ordering::Less => session.accept(peer, stream_id, soon()).unwrap(),
                std::cmp::Ordering::Equal => continue,
                std::cmp::Ordering::Greater => {
                    session.connect(peer, stream_id, via, soon()).unwrap()
                }
            };
            assert_eq!(exchange(&stream, me), peer);
            let unix = stream.domain().unwrap() == Domain::UNIX;
            assert_eq!(unix, via == Via::Unix);
        }
    }
    session.seal(Ok(()), soon()).unwrap();
}
