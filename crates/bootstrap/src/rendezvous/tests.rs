//! The errors that ranks get when others leave, lie or are late.

use std::collections::BTreeSet;
use std::io::Read;

use spark_ccl_fork::Unshared;
use spark_ccl_seal::{Opener, Sealer};

use super::*;
use crate::connect::{Connect, establish};
use crate::frame::FrameReader;
use crate::handshake::{Entered, Intent};
use crate::hello::tests::hello;
use crate::routes::routes;
use crate::{Options, Session, StreamId, StreamKind, UniqueId, keys, net, sealed_frame};

/// Connects to the rendezvous, as a rank does.
fn connect(id: &UniqueId) -> Entered {
    let targets: Vec<_> = id.addresses().into_iter().map(Into::into).collect();
    establish(&Connect {
        peer: "the rendezvous",
        routes: &routes(&[], &targets, None),
        key: &keys::key(&id.secret()),
        intent: Intent::Rendezvous {
            world: keys::world(&id.secret()),
        },
        deadline: soon(),
        refusal: Duration::ZERO,
        interrupt: &|| None,
        more: None,
    })
    .unwrap()
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

/// Sends a message to the rendezvous; if `is_changed`, with its last byte changed on the way.
fn say(stream: &mut Entered, kind: FrameKind, body: Vec<u8>, is_changed: bool) {
    let mut bytes = sealed_frame::sealed(&mut stream.seals.sealer, kind, body);
    if let Some(last) = bytes.last_mut() {
        *last ^= u8::from(is_changed);
    }
    net::write_all(&stream.socket, &bytes, soon()).unwrap();
}

/// Sends a hello to the rendezvous, as a rank does, and closes the connection.
fn arrive_and_leave(id: &UniqueId, hello: &Hello) {
    say(&mut connect(id), FrameKind::Hello, hello.encode(), false);
}

/// Otherwise the error would name the missing ranks.
#[test]
fn a_message_that_is_changed_while_others_are_missing_is_named() {
    let id = UniqueId::create(&Options::default()).unwrap();
    let agreeing = Hello {
        build: Options::default().build,
        wire_hash: 0,
        ..hello(1, 3)
    };
    let mut stream = connect(&id);
    say(&mut stream, FrameKind::Hello, agreeing.encode(), false);
    say(&mut stream, FrameKind::Report, vec![0; 20], true);
    let error = Session::join(&id, 0, 3, &Options::default()).unwrap_err();
    assert!(matches!(error, Error::Links(_)), "{error}");
    let text = error.to_string();
    assert!(text.contains("rank 1 (host1, pid 101): "), "{text}");
    assert!(text.contains("changed on the way"), "{text}");
}

/// An unsealed answer would look changed to it.
#[test]
fn a_rank_whose_hello_is_no_hello_is_told_nothing_that_is_not_sealed() {
    let id = UniqueId::create(&Options::default()).unwrap();
    for (kind, body) in [
        (FrameKind::Hello, vec![1]),
        (FrameKind::Report, vec![0; 20]),
    ] {
        let mut stream = connect(&id);
        say(&mut stream, kind, body, false);
        let mut told = Vec::new();
        (&*stream.socket).read_to_end(&mut told).unwrap();
        assert!(told.is_empty(), "{kind:?}: {told:?}");
    }
}

#[test]
fn a_rank_that_leaves_while_others_are_missing_is_named_at_once() {
    // If the departure went unnoticed, the error would come after two minutes and name the missing
    // rank.
    let id = UniqueId::create(&Options::default()).unwrap();
    let agreeing = Hello {
        build: Options::default().build,
        wire_hash: 0,
        ..hello(1, 3)
    };
    arrive_and_leave(&id, &agreeing);
    let error = Session::join(&id, 0, 3, &Options::default()).unwrap_err();
    assert!(matches!(error, Error::Lost(_)), "{error}");
    assert!(
        error.to_string().contains("rank 1 (host1, pid 101) ended"),
        "{error}"
    );
}

/// Two ranks that are joined by the rendezvous and nothing else.
#[test]
fn ranks_that_no_way_joins_are_named_to_both() {
    let id = UniqueId::create(&Options::default()).unwrap();
    let stream_id = StreamId {
        context: 0,
        kind: StreamKind::Control,
        number: 0,
    };
    let agreeing = Hello {
        build: Options::default().build,
        wire_hash: 0,
        ..hello(1, 2)
    };
    let mut stream = connect(&id);
    say(&mut stream, FrameKind::Hello, agreeing.encode(), false);
    let session = Session::join(&id, 0, 2, &Options::default()).unwrap();
    let survey = Survey {
        reached: 0,
        missed: vec![(0, "10.0.1.1: no route".to_owned())],
        time_left: Duration::from_secs(30),
    };
    say(&mut stream, FrameKind::Survey, survey.encode(), false);
    let error = session
        .connect_all(&BTreeSet::from([1]), stream_id, soon())
        .unwrap_err();
    assert!(matches!(error, Error::Links(_)), "{error}");
    let text = error.to_string();
    for part in [
        "rank 0 (",
        "rank 1 (host1, pid 101) do not reach each other",
        "10.0.1.1: no route",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn an_absurd_size_is_refused_in_words() {
    let id = UniqueId::create(&Options::default()).unwrap();
    arrive_and_leave(&id, &hello(1, u32::MAX));
    let error = Session::join(&id, 0, 2, &Options::default()).unwrap_err();
    assert!(matches!(error, Error::Mismatch(_)), "{error}");
    assert!(error.to_string().contains("4294967295"), "{error}");
}

fn member(hello: Hello) -> Member {
    let (stream, _) =
        socket2::Socket::pair(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
    let reader = FrameReader::sealed(Opener::new(&[0; 32]));
    Member::new(hello, Unshared::new(stream), reader, Sealer::new(&[0; 32]))
}

#[test]
fn who_is_missing_is_said_now_and_then_once_a_rank_has_come() {
    let options = Options {
        rendezvous_setting: "MASTER_ADDR=there".to_owned(),
        doubt: "it is not here".to_owned(),
        ..Options::default()
    };
    let start = Instant::now();
    let mut service = RendezvousService::new(Arc::new(Stop::new().unwrap()), &options).unwrap();
    service.listens_at(&["0.0.0.0:29500".parse().unwrap()]);
    let said = |service: &mut RendezvousService, second| {
        service.reminder(start + Duration::from_secs(second), &|| None)
    };
    assert_eq!(said(&mut service, 60), None);
    let hello = Hello {
        time_left: Duration::from_secs(100),
        ..hello(0, 3)
    };
    service.add_member(member(hello), start);
    assert_eq!(said(&mut service, 4), None);
    let text = said(&mut service, 5).unwrap();
    let wanted = "waiting for ranks 1, 2 of 3 at the rendezvous at 0.0.0.0:29500 \
                  (MASTER_ADDR=there), for 95 s more; present: 0 (host0); it is not here";
    assert_eq!(text, wanted);
    assert_eq!(said(&mut service, 6), None);
    assert!(said(&mut service, 15).is_some());
    service.stage = Stage::Sealing;
    assert_eq!(said(&mut service, 60), None);
}
