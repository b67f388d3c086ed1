//! Handshakes with a listener: by authentic connectors, connectors without the secret, and
//! malformed frames.

mod crowds;

use std::net::SocketAddr;
use std::os::fd::AsFd;

use proptest::prelude::*;

use super::*;
use crate::address::Address;
use crate::connect::{Connect, Unreached, establish, redial};
use crate::dial::Route;
use crate::frame::FrameReader;
use crate::handshake::{self, EnterError, Entered, Entry, MAX_HANDSHAKE, Open, PROTOCOL, enter};
use crate::hello::tests::hello;
use crate::wire::{FrameKind, frame};
use crate::{Error, Secret, StreamKind, sealed_frame};

const KEY: &[u8] = b"the key";
/// The capacity of listeners that tests fill. Any machine gives that many descriptors.
const PLACES: usize = 64;

/// Rank 1 of 2 serves streams in the background until it has admitted one, or time is up.
fn serve() -> (Route, std::thread::JoinHandle<Option<u32>>) {
    let listener = net::listen_tcp(Address::LOOPBACK.with_port(0)).unwrap();
    let target = listener.local_addr().unwrap().as_socket().unwrap();
    let role = ListenerRole::Streams { rank: 1, size: 2 };
    let mut incoming = Incoming::new(role, Keys::one(Secret::from_text(KEY)), vec![listener]);
    let deadline = Instant::now() + Duration::from_secs(30);
    let served = std::thread::spawn(move || {
        while Instant::now() < deadline && incoming.refused.secret.count == 0 {
            let mut fds = Vec::new();
            incoming.watch(&mut fds);
            net::poll(&mut fds, Some(Instant::now() + Duration::from_millis(50))).unwrap();
            drop(fds);
            if let Some(Admitted::Stream { from, .. }) =
                incoming.serve(Instant::now(), &|_, _| true).pop()
            {
                return Some(from);
            }
        }
        None
    });
    (
        Route::Tcp {
            source: None,
            target,
        },
        served,
    )
}

fn stream_to(to: u32) -> Intent {
    let stream_id = StreamId {
        context: 1,
        kind: StreamKind::Tcp,
        number: 0,
    };
    Intent::Stream {
        from: 0,
        to,
        stream_id,
    }
}

fn connect(route: &Route, key: &[u8], intent: Intent) -> Result<Stream, Error> {
    connect_by(std::slice::from_ref(route), key, intent)
}

fn connect_by(routes: &[Route], key: &[u8], intent: Intent) -> Result<Stream, Error> {
    establish(&Connect {
        peer: "rank 1",
        routes,
        key: &Secret::from_text(key),
        intent,
        deadline: Instant::now() + Duration::from_secs(30),
        refusal: Duration::ZERO,
        interrupt: &|| None,
        more: None,
    })
    .map(Entered::into_stream)
}

#[test]
fn only_the_right_key_opens_a_stream() {
    let (route, served) = serve();
    let error = connect(&route, b"another key", stream_to(1)).unwrap_err();
    assert_eq!(
        error,
        Error::Auth {
            peer: "rank 1".to_owned()
        }
    );
    assert_eq!(served.join().unwrap(), None);

    let (route, served) = serve();
    connect(&route, KEY, stream_to(1)).unwrap();
    assert_eq!(served.join().unwrap(), Some(0));
}

#[test]
fn a_stream_for_another_rank_or_listener_is_refused() {
    let (route, served) = serve();
    for intent in [stream_to(0), Intent::Rendezvous { world: [1; 8] }] {
        let error = connect(&route, KEY, intent).unwrap_err();
        assert!(matches!(error, Error::Protocol { .. }), "{error}");
    }
    connect(&route, KEY, stream_to(1)).unwrap();
    assert_eq!(served.join().unwrap(), Some(0));
}

#[test]
fn a_silent_stranger_at_one_address_does_not_hold_a_dial_up() {
    let silent = net::listen_tcp(Address::LOOPBACK.with_port(0)).unwrap();
    let wrong = Route::Tcp {
        source: None,
        target: silent.local_addr().unwrap().as_socket().unwrap(),
    };
    let (right, served) = serve();
    let begin = Instant::now();
    connect_by(&[wrong, right], KEY, stream_to(1)).unwrap();
    assert!(begin.elapsed() < Duration::from_secs(15));
    assert_eq!(served.join().unwrap(), Some(0));
}

/// Nor does it prevent reopening a broken stream.
#[test]
fn a_silent_stranger_at_one_address_leaves_time_for_another() {
    let silent = net::listen_tcp(Address::LOOPBACK.with_port(0)).unwrap();
    let wrong = Route::Tcp {
        source: None,
        target: silent.local_addr().unwrap().as_socket().unwrap(),
    };
    let (right, served) = serve();
    let routes = [wrong.clone(), right];
    let mut again = Connect {
        peer: "rank 1",
        routes: &routes,
        key: &Secret::from_text(KEY),
        intent: stream_to(1),
        deadline: Instant::now() + Duration::from_secs(10),
        refusal: Duration::ZERO,
        interrupt: &|| None,
        more: None,
    };
    redial(&again, |_| false).unwrap();
    assert_eq!(served.join().unwrap(), Some(0));
    // The listener is gone: the second route is refused, but the first accepts connections.
    again.deadline = Instant::now() + Duration::from_secs(1);
    let outcome = redial(&again, |_| false).unwrap_err();
    assert!(
        matches!(&outcome, Unreached::Unresponsive(text) if text.contains(&wrong.name())),
        "{outcome:?}"
    );
}

#[test]
fn another_protocol_version_is_named_with_ours() {
    let (route, served) = serve();
    let Route::Tcp { target, .. } = route else {
        panic!("not a TCP route")
    };
    let deadline = Instant::now() + Duration::from_secs(30);
    let socket = net::connect_tcp(None, target, deadline).unwrap();
    let mut open = Open::new(stream_to(1)).unwrap();
    open.version = PROTOCOL + 1;
    let key = Secret::from_text(KEY);
    let result = enter(&socket, &key, &open, "rank 1", deadline, deadline);
    let Err(EnterError::Final(error)) = result else {
        panic!("it was let in")
    };
    assert!(
        matches!(
            error,
            Error::Version {
                theirs: PROTOCOL,
                ..
            }
        ),
        "{error}"
    );
    connect(&route, KEY, stream_to(1)).unwrap();
    assert_eq!(served.join().unwrap(), Some(0));
}

#[test]
fn a_server_without_the_key_is_found_out() {
    let (near, far) = net::tcp_pair().unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    let server = std::thread::spawn(move || {
        let mut reader = FrameReader::default();
        let mut read = || loop {
            net::wait(far.as_fd(), PollFlags::IN, deadline).unwrap();
            if let Some(frame) = reader.poll(&far, MAX_HANDSHAKE).unwrap() {
                return frame;
            }
        };
        read();
        let challenge = frame(FrameKind::Challenge, &handshake::challenge(&[0; 32]));
        net::write_all(&far, &challenge, deadline).unwrap();
        // Reflects the client's proof, which is valid only for the other role.
        let (_, proof) = read();
        net::write_all(&far, &frame(FrameKind::Accept, &proof), deadline).unwrap();
        far
    });
    let open = Open::new(stream_to(1)).unwrap();
    let key = Secret::from_text(KEY);
    let result = enter(&near, &key, &open, "rank 1", deadline, deadline);
    assert!(matches!(result, Err(EnterError::Final(Error::Auth { .. }))));
    server.join().unwrap();
}

/// A rank at the rendezvous is authenticated; strangers take all places before it sends its hello.
#[test]
fn a_rank_that_has_yet_to_say_hello_keeps_its_place() {
    let listener = net::listen_tcp(Address::LOOPBACK.with_port(0)).unwrap();
    let target = listener.local_addr().unwrap().as_socket().unwrap();
    let key = Secret::from_text(KEY);
    let mut incoming = Incoming::new(ListenerRole::Rendezvous, Keys::one(key), vec![listener]);
    incoming.capacity = PLACES;
    let begin = Instant::now();
    let deadline = begin + Duration::from_secs(30);
    let dial = || net::connect_tcp(None, target, deadline).unwrap();

    let rank = dial();
    let open = Open::new(Intent::Rendezvous { world: [1; 8] }).unwrap();
    let Ok(mut entry) = Entry::begin(&rank, &open) else {
        panic!("the first message is not sent")
    };
    while !matches!(entry.step(&rank, &key, "the rendezvous"), Ok(true)) {
        assert!(Instant::now() < deadline);
        assert!(incoming.serve(begin, &|_, _| true).is_empty());
    }
    let strangers: Vec<Socket> = (0..2 * PLACES).map(|_| dial()).collect();
    for tick in 0..8 {
        assert!(
            incoming
                .serve(begin + tick * PAUSE, &|_, _| true)
                .is_empty()
        );
    }
    assert!(incoming.refused.unproved.count >= PLACES as u64 / 2);
    let sealer = &mut entry.seals(&key).sealer;
    let bytes = sealed_frame::sealed(sealer, FrameKind::Hello, hello(1, 3).encode());
    net::write_all(&rank, &bytes, deadline).unwrap();
    let admitted = loop {
        assert!(Instant::now() < deadline);
        if let Some(admitted) = incoming.serve(begin + 4 * GRACE, &|_, _| true).pop() {
            break admitted;
        }
    };
    assert!(matches!(admitted, Admitted::Rank { hello, .. } if hello.peer.rank == 1));
    drop(strangers);
}

/// Frames that a stranger may send: of any kind, some of them almost valid.
fn strange_frames() -> impl Strategy<Value = Vec<u8>> {
    let open = Open {
        version: PROTOCOL,
        intent: stream_to(1),
        nonce: [3; 32],
    };
    let open = open.encode();
    let almost = (any::<prop::sample::Index>(), any::<u8>()).prop_map({
        let open = open.clone();
        move |(at, with)| {
            let mut body = open.clone();
            let at = at.index(body.len());
            body[at] = with;
            frame(FrameKind::Open, &body)
        }
    });
    let kind = prop::sample::select(vec![
        FrameKind::Open,
        FrameKind::Proof,
        FrameKind::Accept,
        FrameKind::Hello,
    ]);
    let any_body = prop::collection::vec(any::<u8>(), 0..MAX_HANDSHAKE);
    let frames = prop_oneof![
        Just(frame(FrameKind::Open, &open)),
        almost,
        (kind, any_body).prop_map(|(kind, body)| frame(kind, &body)),
        prop::collection::vec(any::<u8>(), 1..40),
    ];
    prop::collection::vec(frames, 1..5).prop_map(|frames| frames.concat())
}

proptest! {
    #[test]
    fn no_stranger_gets_in_whatever_it_says(bytes in strange_frames()) {
        let (mut stranger, ours) = net::tcp_pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        std::io::Write::write_all(&mut stranger, &bytes).unwrap();
        let from = ours.peer_addr().unwrap();
        let mut pending = PendingConnection::new(ours, Origin::new(0, &from), Instant::now());
        let role = ListenerRole::Streams { rank: 1, size: 2 };
        let step = pending.step(role, &Keys::one(Secret::from_text(KEY)), &|_, _| true);
        prop_assert!(!matches!(step, Ok(Step::Done(_))));
    }
}

/// Runs in a process of its own, in which neither end has a descriptor left.
#[test]
fn without_descriptors_both_ends_are_told_at_once() {
    const ALONE: &str = "SPARK_CCL_TEST_ALONE";
    const NAME: &str = "incoming::tests::without_descriptors_both_ends_are_told_at_once";
    if std::env::var_os(ALONE).is_none() {
        let mut alone = std::process::Command::new("sh");
        alone.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""]);
        alone.arg(std::env::current_exe().unwrap());
        let output = alone
            .args(["--exact", NAME])
            .env(ALONE, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{text}"
        );
        return;
    }
    let (route, served) = serve();
    let mut files = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        files.push(file);
    }
    let error = connect(&route, KEY, stream_to(1)).unwrap_err().to_string();
    assert!(
        error.contains("open a connection") && error.contains("(64)"),
        "{error}"
    );
    // Frees one for the connector's socket, and none for the listener's.
    files.pop();
    let error = connect(&route, KEY, stream_to(1)).unwrap_err().to_string();
    assert!(error.contains("be accepted by rank 1"), "{error}");
    assert!(error.contains("`ulimit -n` there"), "{error}");
    files.clear();
    connect(&route, KEY, stream_to(1)).unwrap();
    assert_eq!(served.join().unwrap(), Some(0));
}
