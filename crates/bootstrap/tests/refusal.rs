//! How a session ends if the system refuses to wait for its connections. The test is alone in its
//! process, whose limits it changes.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use common::{WATCHDOG, soon, stream_id, world};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use spark_ccl_bootstrap::{StreamHandler, StreamKind, Via};

#[test]
fn links_are_made_after_the_system_has_refused_to_wait() {
    let sessions = world(2);
    let wanted = stream_id(StreamKind::Tcp, 0);
    let before = getrlimit(Resource::Nofile);
    // poll fails if it gets more descriptors than the process may have.
    let none = Rlimit {
        current: Some(1),
        ..before
    };
    setrlimit(Resource::Nofile, none).unwrap();
    // Wakes the sessions' threads, which try to wait again.
    for session in &sessions {
        session.dismiss(1);
    }
    std::thread::sleep(Duration::from_millis(300));
    setrlimit(Resource::Nofile, before).unwrap();

    let (sender, receiver) = channel();
    for session in &sessions {
        let (sender, rank) = (sender.clone(), session.rank());
        let handler: StreamHandler = Arc::new(move |delivery| {
            let _ = sender.send((rank, delivery.stream.is_ok()));
            None
        });
        session.handle_streams(wanted.context, &handler);
    }
    sessions[0].reach(1, wanted, &[Via::Unix], soon()).unwrap();
    let mut delivered: Vec<(u32, bool)> = (0..2)
        .map(|_| receiver.recv_timeout(WATCHDOG).unwrap())
        .collect();
    delivered.sort_unstable();
    assert_eq!(delivered, [(0, true), (1, true)]);
}
