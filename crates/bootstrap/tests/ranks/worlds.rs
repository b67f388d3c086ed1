//! Worlds that come up, over sockets and in one process.

use std::io::{Read, Write};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use spark_ccl_bootstrap::{
    Address, Cancel, Error, Options, Root, Secret, Session, StreamKind, UniqueId, Unreached, Via,
};
use spark_ccl_testing::{Need, free_port, has};

use crate::common::{self, TCP, in_parallel, join_all, mesh, options, soon, stream_id, world};

#[test]
fn all_pairs_connect_over_sockets() {
    for size in [1, 2, 3, 5, 8] {
        let sessions = world(size);
        for (rank, session) in (0..).zip(&sessions) {
            assert_eq!((session.rank(), session.size()), (rank, size));
            assert!(session.local_to(size - 1));
            assert!(!session.local_to(size));
            assert_eq!(session.peer(rank).pid, std::process::id());
            assert!(!session.peer(rank).addresses.is_empty());
        }
        in_parallel(sessions, |session| mesh(&session));
    }
}

#[test]
fn all_pairs_connect_within_a_process() {
    for size in [1, 2, 3, 5, 8] {
        in_parallel(Session::local(size).unwrap(), |session| mesh(&session));
    }
}

#[test]
fn streams_open_after_the_seal_and_to_oneself() {
    for sessions in [world(2), Session::local(2).unwrap()] {
        let sessions = in_parallel(sessions, |session| {
            session.seal(Ok(()), soon()).unwrap();
            session
        });
        let wanted = stream_id(StreamKind::Control, 9);
        for peer in [0, 1] {
            let near = sessions[0].connect(peer, wanted, TCP, soon()).unwrap();
            let far = sessions[peer as usize].accept(0, wanted, soon()).unwrap();
            (&*near).write_all(b"x").unwrap();
            (&*far).read_exact(&mut [0]).unwrap();
        }
        let again = sessions[0].seal(Ok(()), soon());
        assert!(matches!(again, Err(Error::Argument(_))), "{again:?}");
    }
}

#[test]
fn a_stream_arrives_before_it_is_asked_for() {
    let sessions = world(2);
    let streams: Vec<_> = (0..20)
        .map(|number| {
            sessions[0]
                .connect(1, stream_id(StreamKind::Control, number), TCP, soon())
                .unwrap()
        })
        .collect();
    for number in (0..20).rev() {
        let far = sessions[1]
            .accept(0, stream_id(StreamKind::Control, number), soon())
            .unwrap();
        (&*far).write_all(&[number as u8]).unwrap();
        let mut byte = [0];
        (&*streams[number as usize]).read_exact(&mut byte).unwrap();
        assert_eq!(byte, [number as u8]);
    }
}

#[test]
fn a_stream_is_opened_once_more_until_the_peer_has_ended() {
    let mut sessions = world(2);
    let (sender, arrived) = std::sync::mpsc::channel();
    sessions[1].hand_over(StreamKind::Control, move |from, stream_id, stream| {
        sender.send((from, stream_id, stream)).unwrap();
    });
    for number in 1..4 {
        let wanted = stream_id(StreamKind::Control, number);
        let near = sessions[0].redial(1, wanted, soon()).unwrap();
        let (from, seen, far) = arrived.recv_timeout(common::WATCHDOG).unwrap();
        assert_eq!((from, seen), (0, wanted));
        (&*near).write_all(b"x").unwrap();
        (&*far).read_exact(&mut [0]).unwrap();
    }
    // Streams with number 0 are accepted as before.
    let other = stream_id(StreamKind::Control, 0);
    sessions[0].connect(1, other, TCP, soon()).unwrap();
    sessions[1].accept(0, other, soon()).unwrap();
    drop(sessions.pop());
    let start = Instant::now();
    loop {
        // The peer's thread may take a moment to end.
        match sessions[0].redial(1, stream_id(StreamKind::Control, 9), soon()) {
            Err(Unreached::Refused(text)) => {
                assert!(text.contains("refused"), "{text}");
                break;
            }
            _ => assert!(start.elapsed() < common::WATCHDOG, "it is still there"),
        }
    }
}

#[test]
fn a_target_and_a_source_can_be_chosen() {
    let loopbacks =
        ["127.0.0.1", "127.0.0.2"].map(|ip| Address::from(ip.parse::<IpAddr>().unwrap()));
    let options = Options {
        addresses: loopbacks.to_vec(),
        ..options()
    };
    let id = UniqueId::create(&options).unwrap();
    let sessions = common::join_all(id, &[0, 1], 2, &options);
    let sessions: Vec<Session> = sessions.into_iter().map(Result::unwrap).collect();
    let via = Via::Tcp {
        source: Some(loopbacks[0]),
        target: Some(1),
    };
    let stream = sessions[0]
        .connect(1, stream_id(StreamKind::Control, 0), via, soon())
        .unwrap();
    assert_eq!(
        stream.peer_addr().unwrap().as_socket(),
        Some(sessions[1].peer(1).addresses[1].address)
    );
    assert_eq!(
        stream.local_addr().unwrap().as_socket().unwrap().ip(),
        loopbacks[0].ip
    );
    let none = Via::Tcp {
        source: None,
        target: Some(2),
    };
    let error = sessions[0]
        .connect(1, stream_id(StreamKind::Control, 1), none, soon())
        .unwrap_err();
    assert!(error.to_string().contains("2 addresses"), "{error}");
}

#[test]
fn all_ranks_hear_what_rank_0_says() {
    let long = "n".repeat(spark_ccl_bootstrap::MAX_NOTE);
    for note in ["", "a note", &long] {
        let id = UniqueId::create(&options()).unwrap();
        let join = move |(id, rank, text): (UniqueId, u32, String)| {
            let options = Options {
                note: text,
                ..options()
            };
            let session = Session::join(&id, rank, 3, &options).unwrap();
            session.note().to_owned()
        };
        let texts = [note, "not this", ""].map(str::to_owned);
        let ranks = (0..).zip(texts).map(|(rank, text)| (id, rank, text));
        for heard in in_parallel(ranks.collect(), join) {
            assert_eq!(heard, note);
        }
    }
}

#[test]
fn ipv6_loopback_works_where_there_is_one() {
    if !has(Need::Ipv6) {
        return;
    }
    let loopback = Address::from("::1".parse::<IpAddr>().unwrap());
    let options = Options {
        addresses: vec![loopback],
        ..options()
    };
    let root = Root::create(&options).unwrap();
    let sessions = common::join_all(root.id(), &[0, 1], 2, &options);
    in_parallel(sessions, |session| mesh(&session.unwrap()));
}

#[test]
fn a_known_address_works_with_and_without_a_secret() {
    for (host, secret) in [
        ("127.0.0.1", None),
        ("localhost", None),
        ("127.0.0.1", Some(Secret::from_text(b"s"))),
    ] {
        let port = free_port();
        // Rank 0 starts last: the others wait for its port.
        let sessions = in_parallel(vec![2, 1, 0], move |rank| {
            if rank == 0 {
                std::thread::sleep(Duration::from_millis(200));
            }
            Session::at_address((host, port), rank, 3, secret.as_ref(), true, &options()).unwrap()
        });
        in_parallel(sessions, |session| mesh(&session));
    }
}

#[test]
fn published_addresses_and_a_shared_secret_are_enough() {
    for secret in [None, Some(Secret::from_text(b"s"))] {
        let id = UniqueId::serve(secret.as_ref(), &options()).unwrap();
        let addresses = id.addresses();
        let sessions = in_parallel(vec![0, 1, 2], move |rank| {
            let id = UniqueId::of_rendezvous(secret.as_ref(), &addresses).unwrap();
            Session::join(&id, rank, 3, &options()).unwrap()
        });
        in_parallel(sessions, |session| mesh(&session));
    }
}

#[test]
fn without_a_secret_all_listeners_are_on_loopback_only() {
    let everywhere = Address::from("0.0.0.0".parse::<IpAddr>().unwrap());
    let options = Options {
        addresses: vec![everywhere],
        ..options()
    };
    let id = UniqueId::serve(None, &options).unwrap();
    let session = Session::join(&id, 0, 1, &options).unwrap();
    let addresses = [id.addresses(), listening_at(&session, 0)].concat();
    assert!(addresses.iter().all(|address| address.ip().is_loopback()));
    let secret = Secret::from_text(b"s");
    let addresses = UniqueId::serve(Some(&secret), &options)
        .unwrap()
        .addresses();
    assert_eq!(addresses[0].ip(), everywhere.ip);
}

#[test]
fn the_port_is_free_again_once_all_have_come() {
    let port = free_port();
    let start = move || {
        in_parallel(vec![0, 1], move |rank| {
            Session::at_address(("127.0.0.1", port), rank, 2, None, true, &options()).unwrap()
        })
    };
    let first = start();
    let second = start();
    in_parallel(first.into_iter().chain(second).collect(), |s| {
        s.seal(Ok(()), soon()).unwrap();
    });
}

#[test]
fn contexts_agree_between_ranks_and_differ_otherwise() {
    for sessions in [world(2), Session::local(2).unwrap()] {
        let names: Vec<Vec<u64>> = sessions
            .iter()
            .map(|s| {
                [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]
                    .map(|(p, n, c)| s.derive_context(p, n, c))
                    .to_vec()
            })
            .collect();
        assert_eq!(names[0], names[1]);
        let mut distinct = names[0].clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), 4);
    }
    let (a, b) = (Session::local(1).unwrap(), Session::local(1).unwrap());
    assert_ne!(a[0].derive_context(0, 0, 0), b[0].derive_context(0, 0, 0));
}

#[test]
fn threads_and_sockets_end_with_their_session() {
    // Checks the world's own sockets, because other tests of this process have threads, too: its
    // listeners refuse connections once the threads that own them are gone.
    let sessions = in_parallel(world(3), |session| {
        session.seal(Ok(()), soon()).unwrap();
        session
    });
    let listeners: Vec<_> = (0..3)
        .flat_map(|rank| listening_at(&sessions[0], rank))
        .collect();
    drop(sessions);
    for address in listeners {
        while std::net::TcpStream::connect(address).is_ok() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn accept_gives_up_at_its_deadline_and_names_the_peer() {
    for sessions in [world(2), Session::local(2).unwrap()] {
        let deadline = Instant::now() + Duration::from_millis(50);
        let error = sessions[0]
            .accept(1, stream_id(StreamKind::Control, 0), deadline)
            .unwrap_err();
        assert!(matches!(error, Error::Timeout(_)));
        assert!(error.to_string().contains("rank 1 ("), "{error}");
    }
}

fn listening_at(session: &Session, rank: u32) -> Vec<std::net::SocketAddr> {
    let endpoints = session.peer(rank).addresses.iter();
    endpoints.map(|one| one.address).collect()
}

/// The rank that it waits for has come, and does nothing more.
#[test]
fn each_wait_for_a_rank_ends_when_it_is_cancelled() {
    type Wait = fn(&Session) -> Result<(), Error>;
    let waits: [Wait; 4] = [
        |session| {
            session
                .accept(1, stream_id(StreamKind::Control, 0), soon())
                .map(drop)
        },
        |session| session.seal(Ok(()), soon()),
        |session| {
            let above = [1].into();
            let connected = session.connect_all(&above, stream_id(StreamKind::Control, 0), soon());
            connected.map(drop)
        },
        |session| {
            session.seal(Ok(()), soon())?;
            session
                .accept(1, stream_id(StreamKind::Tcp, 0), soon())
                .map(drop)
        },
    ];
    for wait in waits {
        let cancel = Cancel::new();
        let options = Options {
            cancel: cancel.clone(),
            ..options()
        };
        let id = UniqueId::create(&options).unwrap();
        let mut sessions = join_all(id, &[0, 1], 2, &options).into_iter();
        let [first, _second] = [(); 2].map(|()| sessions.next().unwrap().unwrap());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| wait(&first));
            std::thread::sleep(Duration::from_millis(50));
            cancel.cancel();
            assert_eq!(waits.join().unwrap(), Err(Error::Cancelled));
        });
    }
}
