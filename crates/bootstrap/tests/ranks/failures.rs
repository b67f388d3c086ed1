//! Worlds that must not come up, and the errors that their ranks get.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use spark_ccl_bootstrap::{
    Address, Error, Options, Root, Secret, Session, StreamKind, UniqueId, Via,
};
use spark_ccl_testing::{free_port, with_enough_time};

use crate::common::{
    TCP, common_error, in_parallel, join_all, options, same_error, soon, stream_id, within, world,
};

fn create() -> UniqueId {
    UniqueId::create(&options()).unwrap()
}

/// `Ok` if ranks were in time; else the text that they got instead.
fn unless_late(in_time: bool, text: &str) -> Result<(), String> {
    in_time.then_some(()).ok_or_else(|| text.to_owned())
}

#[test]
fn impossible_ranks_are_refused_at_once() {
    let id = create();
    for (rank, size, words) in [(0, 0, "0 ranks"), (3, 3, "rank 3"), (0, 65_537, "65536")] {
        let error = Session::join(&id, rank, size, &options()).unwrap_err();
        assert!(
            matches!(error, Error::Argument(_)) && error.to_string().contains(words),
            "{error}"
        );
    }
    assert!(matches!(Session::local(0), Err(Error::Argument(_))));
    let nowhere = Options {
        addresses: Vec::new(),
        ..options()
    };
    assert!(matches!(Root::create(&nowhere), Err(Error::Argument(_))));
}

#[test]
fn different_sizes_are_named_on_every_rank() {
    let id = create();
    let results = in_parallel(vec![(0, 3), (1, 3), (2, 4)], move |(rank, size)| {
        Session::join(&id, rank, size, &options())
    });
    let (error, text) = common_error(results);
    assert!(matches!(error, Error::Mismatch(_)));
    assert!(
        text.contains("3 on ranks 0, 1") && text.contains("4 on rank 2"),
        "{text}"
    );
}

#[test]
fn duplicate_ranks_are_named_on_every_rank() {
    let (error, text) = common_error(join_all(create(), &[0, 1, 1], 3, &options()));
    assert!(matches!(error, Error::Mismatch(_)));
    assert!(text.contains("2 processes are rank 1"), "{text}");
    assert!(
        text.contains(&format!("pid {}", std::process::id())),
        "{text}"
    );
}

#[test]
fn builds_and_settings_that_differ_are_named_on_every_rank() {
    let id = create();
    let results = in_parallel(vec![0, 1, 2], move |rank| {
        let odd = rank == 1;
        let options = Options {
            build: if odd { "0.9" } else { "1.0" }.to_owned(),
            wire_hash: u64::from(odd),
            wire_summary: format!("slots={} path=auto", if odd { 16 } else { 8 }),
            ..options()
        };
        Session::join(&id, rank, 3, &options)
    });
    let (error, text) = common_error(results);
    assert!(matches!(error, Error::Mismatch(_)));
    assert!(text.contains("0.9 on rank 1, 1.0 on ranks 0, 2"), "{text}");
    assert!(
        text.contains("slots is 16 on rank 1, 8 on ranks 0, 2"),
        "{text}"
    );
    assert!(!text.contains("path"), "{text}");
}

#[test]
fn missing_ranks_are_named_at_the_deadline() {
    with_enough_time(Duration::from_millis(1500), |limit| {
        let id = UniqueId::create(&within(limit)).unwrap();
        let (error, text) = same_error(join_all(id, &[0, 3], 5, &within(2 * limit)))?;
        assert!(matches!(error, Error::Missing(_)), "{text}");
        let limit = format!("within {:.1} s; present: 0 (", limit.as_secs_f64());
        let is_named = text.starts_with("ranks 1, 2, 4 of 5 did not arrive");
        unless_late(is_named && text.contains(&limit), &text)
    });
}

#[test]
fn the_least_patient_rank_gets_the_names_as_well() {
    with_enough_time(Duration::from_secs(1), |limit| {
        let error = Session::join(&create(), 0, 2, &within(limit)).unwrap_err();
        let text = error.to_string();
        unless_late(text.starts_with("rank 1 of 2 did not arrive"), &text)
    });
}

#[test]
fn a_wrong_secret_is_named_at_both_ends() {
    with_enough_time(Duration::from_millis(1500), |limit| {
        let port = free_port();
        let results = in_parallel(vec![0, 1], move |rank| {
            let secret = Secret::from_text(if rank == 0 { b"right" } else { b"wrong" });
            let place = ("127.0.0.1", port);
            Session::at_address(place, rank, 2, Some(&secret), true, &within(limit))
        });
        let results: [Result<Session, Error>; 2] = results.try_into().unwrap();
        let [ours, theirs] = results.map(Result::unwrap_err);
        let (told, text) = (ours.to_string(), theirs.to_string());
        let is_told = told.contains("1 connections with a different secret");
        let is_refused = matches!(theirs, Error::Auth { .. });
        unless_late(is_told && is_refused, &format!("{told}; {text}"))?;
        assert!(matches!(ours, Error::Missing(_)), "{ours}");
        assert!(text.contains("SPARK_CCL_SECRET"), "{text}");
        Ok(())
    });
}

#[test]
fn beyond_loopback_a_secret_is_needed() {
    for rank in [0, 1] {
        let error =
            Session::at_address(("192.0.2.1", 5000), rank, 2, None, true, &options()).unwrap_err();
        assert!(matches!(error, Error::NoSecret { .. }), "{error}");
        assert!(
            error.to_string().contains("SPARK_CCL_SECRET_FILE"),
            "{error}"
        );
    }
}

#[test]
fn published_addresses_beyond_loopback_need_a_secret() {
    let open = ["127.0.0.1:5000", "192.0.2.1:5000"].map(|a| a.parse().unwrap());
    let error = UniqueId::of_rendezvous(None, &open).unwrap_err();
    assert!(matches!(error, Error::NoSecret { .. }), "{error}");
    assert!(error.to_string().contains("192.0.2.1:5000"), "{error}");
    let secret = Secret::from_text(b"s");
    assert!(UniqueId::of_rendezvous(Some(&secret), &open).is_ok());
    for unusable in [&[][..], &["127.0.0.1:0".parse().unwrap()]] {
        let error = UniqueId::of_rendezvous(Some(&secret), unusable).unwrap_err();
        assert!(matches!(error, Error::UniqueId(_)), "{error}");
    }
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    for secret in [None, Some(Secret::from_text(b"s"))] {
        for host in ["127.0.0.1", "localhost"] {
            let error = Session::at_address((host, port), 0, 2, secret.as_ref(), true, &options())
                .unwrap_err();
            assert!(matches!(error, Error::AddressInUse { .. }), "{error}");
            assert!(error.to_string().contains(&port.to_string()), "{error}");
        }
    }
}

#[test]
fn an_unreachable_rendezvous_is_named_with_each_address() {
    let root = Root::create(&options()).unwrap();
    let id = root.id();
    drop(root);
    let error = Session::join(&id, 0, 2, &options()).unwrap_err();
    assert!(matches!(error, Error::Expired(_)), "{error}");
    assert!(
        error.to_string().contains(&id.addresses()[0].to_string()),
        "{error}"
    );
    let port = free_port();
    with_enough_time(Duration::from_millis(300), |limit| {
        let place = ("127.0.0.1", port);
        let error = Session::at_address(place, 1, 2, None, true, &within(limit)).unwrap_err();
        let refused = format!("127.0.0.1:{port}: Connection refused");
        let text = error.to_string();
        unless_late(text.contains(&refused), &text)
    });
}

#[test]
fn a_host_without_a_name_is_an_error_at_the_deadline() {
    let host = "no-such-host.invalid";
    let error = Session::at_address(
        (host, 1),
        1,
        2,
        None,
        true,
        &within(Duration::from_millis(500)),
    )
    .unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains(host), "{error}");
}

#[test]
fn another_service_on_the_port_is_told_apart() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = other.accept() {
            let _ = std::io::Write::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let error = Session::at_address(("127.0.0.1", port), 1, 2, None, true, &options()).unwrap_err();
    assert!(matches!(error, Error::Protocol { .. }), "{error}");
}

#[test]
fn a_rendezvous_that_is_dropped_ends_the_wait() {
    with_enough_time(Duration::from_millis(300), |limit| {
        let root = Root::create(&options()).unwrap();
        let id = root.id();
        let waiting = std::thread::spawn(move || Session::join(&id, 0, 2, &options()));
        // The rank arrives meanwhile.
        std::thread::sleep(limit);
        drop(root);
        let error = waiting.join().unwrap().unwrap_err();
        unless_late(matches!(error, Error::Lost(_)), &error.to_string())
    });
}

#[test]
fn one_failed_rank_fails_the_seal_of_all_with_its_reason() {
    for sessions in [world(3), Session::local(3).unwrap()] {
        let results = in_parallel(sessions, |session| {
            let links = if session.rank() == 1 {
                Err("no route".to_owned())
            } else {
                Ok(())
            };
            session.seal(links, soon()).map(|()| session)
        });
        let (error, text) = common_error(results);
        assert!(matches!(error, Error::Links(_)));
        assert!(
            text.contains("rank 1 (") && text.contains("no route"),
            "{text}"
        );
        assert!(!text.contains("rank 2"), "{text}");
    }
}

#[test]
fn a_rank_that_leaves_before_the_seal_is_named() {
    for mut sessions in [world(3), Session::local(3).unwrap()] {
        drop(sessions.remove(1));
        let results = in_parallel(sessions, |session| {
            // Both the rank that waits for a stream and the rank that seals get the error.
            if session.rank() == 0 {
                session
                    .accept(2, stream_id(StreamKind::Control, 0), soon())
                    .map(|_| session)
            } else {
                session.seal(Ok(()), soon()).map(|()| session)
            }
        });
        let (error, text) = common_error(results);
        assert!(matches!(error, Error::Lost(_)), "{text}");
        assert!(
            text.contains("rank 1 ") && !text.contains("rank 0"),
            "{text}"
        );
    }
}

#[test]
fn a_rank_that_does_not_seal_in_time_is_named() {
    for make in [world, |size| Session::local(size).unwrap()] {
        with_enough_time(Duration::from_millis(800), |limit| {
            let mut sessions = make(3);
            let late = sessions.remove(2);
            let results = in_parallel(sessions, move |session| {
                let deadline = Instant::now() + limit;
                session.seal(Ok(()), deadline).map(|()| session)
            });
            let (_, text) = same_error(results)?;
            assert!(text.contains("rank 2 "), "{text}");
            drop(late);
            unless_late(!text.contains("rank 0") && !text.contains("rank 1"), &text)
        });
    }
}

#[test]
fn connecting_to_a_rank_that_is_gone_names_it_and_its_addresses() {
    let mut sessions = in_parallel(world(2), |session| {
        session.seal(Ok(()), soon()).unwrap();
        session
    });
    let gone = sessions.remove(1);
    drop(gone);
    for via in [TCP, Via::Unix] {
        let error = sessions[0]
            .connect(1, stream_id(StreamKind::Control, 0), via, soon())
            .unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
        assert!(
            error.to_string().contains("cannot reach rank 1 ("),
            "{error}"
        );
    }
}

#[test]
fn addresses_that_are_not_ours_are_named() {
    let foreign = Address::from("192.0.2.7".parse::<std::net::IpAddr>().unwrap());
    let error = Root::create(&Options {
        addresses: vec![foreign],
        ..options()
    })
    .unwrap_err();
    assert!(error.to_string().contains("192.0.2.7"), "{error}");
}
