//! How a session's thread handles several dials at a time.

use spark_ccl_fork::Unshared;

use super::*;
use crate::handshake::{EnterError, Entry, Intent, Open};
use crate::incoming::ListenerRole;
use crate::keys::Keys;
use crate::link_streams::Contexts;
use crate::{Secret, StreamKind};

const KEY: &[u8] = b"the key";

/// The thread's state at rank 1 of two, listening on a Unix socket of this name, and the
/// rendezvous' end of its stream.
fn session_thread(name: &str) -> (SessionThread, Socket) {
    let key = Secret::from_text(KEY);
    let role = ListenerRole::Streams { rank: 1, size: 2 };
    let listener = net::listen_unix(name).unwrap();
    let requests = Arc::new(Requests::new().unwrap());
    let contexts = Arc::<Contexts>::default();
    let (rendezvous, its_end) = net::tcp_pair().unwrap();
    let rendezvous = RendezvousStream::new(
        Arc::new(Unshared::new(rendezvous)),
        FrameReader::default(),
        "the rendezvous".to_owned(),
        2,
    );
    let session_thread = SessionThread {
        incoming: Incoming::new(role, Keys::one(key), vec![listener]),
        stream_table: Arc::default(),
        stop: Arc::new(Stop::new().unwrap()),
        rendezvous,
        requests: Arc::clone(&requests),
        link_streams: LinkStreams::new(1, key, requests, contexts),
        relays: Relays::default(),
        draining: Arc::default(),
        responder: None,
        init_result: None,
        routes: Box::new(|_| Vec::new()),
    };
    (session_thread, its_end)
}

/// Both connections prove themselves before the thread looks at either.
#[test]
fn of_two_dials_for_one_stream_id_one_is_accepted() {
    let name = format!("spark-ccl-test-two-dials-{}", std::process::id());
    let (mut session_thread, _rendezvous) = session_thread(&name);
    let stream_id = StreamId {
        context: 1,
        kind: StreamKind::Tcp,
        number: 0,
    };
    let intent = Intent::Stream {
        from: 0,
        to: 1,
        stream_id,
    };
    let mut dials: Vec<(Socket, Entry)> = (0..2)
        .map(|_| {
            let socket = net::begin_unix(&name).unwrap();
            let open = Open::new(intent).unwrap();
            let Ok(entry) = Entry::begin(&socket, &open) else {
                panic!("the first message is not sent")
            };
            (socket, entry)
        })
        .collect();
    let mut step = || {
        let key = Secret::from_text(KEY);
        dials
            .iter_mut()
            .map(|(socket, entry)| entry.step(socket, &key, "rank 1"))
            .collect::<Vec<_>>()
    };
    session_thread.answer();
    assert!(matches!(step()[..], [Ok(false), Ok(false)]));
    session_thread.answer();
    let outcomes = step();
    assert!(
        matches!(outcomes[..], [Ok(true), Err(EnterError::Crossed)]),
        "not exactly one was accepted"
    );
}
