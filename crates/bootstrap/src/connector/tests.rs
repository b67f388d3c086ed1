//! A dial survives a wrong server at one address, and refusals by the peer.

use socket2::Socket;

use super::*;
use crate::address::Address;
use crate::incoming::{Admitted, Incoming, ListenerRole};
use crate::keys::Keys;
use crate::{StreamId, StreamKind, net};

const KEY: &[u8] = b"the key";
const REFUSAL: Duration = Duration::from_millis(500);
const STREAM_ID: StreamId = StreamId {
    context: 1,
    kind: StreamKind::Tcp,
    number: 0,
};

/// The listener of one rank of two, and the route to it.
fn listening(rank: u32) -> (Incoming, Route) {
    let listener = net::listen_tcp(Address::LOOPBACK.with_port(0)).unwrap();
    let target = listener.local_addr().unwrap().as_socket().unwrap();
    let role = ListenerRole::Streams { rank, size: 2 };
    let incoming = Incoming::new(role, Keys::one(Secret::from_text(KEY)), vec![listener]);
    let source = None;
    (incoming, Route::Tcp { source, target })
}

/// One of the peer's addresses leads to a stranger, and the peer turns the dial down twice.
#[test]
fn a_stranger_at_one_address_does_not_end_the_dial() {
    let (mut stranger, wrong) = listening(0);
    let (mut peer, right) = listening(1);
    let intent = Intent::Stream {
        from: 0,
        to: 1,
        stream_id: STREAM_ID,
    };
    let begin = Instant::now();
    let deadline = begin + Duration::from_secs(30);
    let name = "rank 1".to_owned();
    let mut connector =
        Connector::new(name, vec![wrong, right], intent, REFUSAL, (begin, deadline));
    let turned_down = std::cell::Cell::new(0);
    let admits = |_, _| turned_down.replace(turned_down.get() + 1) >= 2;
    let (mut admitted, mut outcome) = (false, None);
    while !admitted || outcome.is_none() {
        let now = Instant::now();
        assert!(now < deadline);
        if outcome.is_none() {
            outcome = connector.step(&Secret::from_text(KEY), now);
        }
        assert!(stranger.serve(now, &admits).is_empty());
        let connections = peer.serve(now, &admits);
        admitted |= matches!(connections[..], [Admitted::Stream { from: 0, .. }]);
    }
    outcome.unwrap().unwrap();
    assert_eq!(turned_down.get(), 3);
}

/// A listener that accepts connections and says nothing, and the route to it.
fn silent() -> (Socket, Route) {
    let listener = net::listen_tcp(Address::LOOPBACK.with_port(0)).unwrap();
    let target = listener.local_addr().unwrap().as_socket().unwrap();
    let source = None;
    (listener, Route::Tcp { source, target })
}

/// A dial to rank 1 over these routes that may take `limit`, and when it begins.
fn dial(routes: &[&Route], limit: Duration) -> (Connector, Instant) {
    let intent = Intent::Stream {
        from: 0,
        to: 1,
        stream_id: STREAM_ID,
    };
    let routes = routes.iter().map(|&route| route.clone()).collect();
    let begin = Instant::now();
    let name = "rank 1".to_owned();
    let connector = Connector::new(name, routes, intent, REFUSAL, (begin, begin + limit));
    (connector, begin)
}

/// Steps the dial until it ends, in simulated time: 20 ms a step, however long `work` takes.
fn until_the_end(
    connector: &mut Connector,
    begin: Instant,
    mut work: impl FnMut(Instant, &Connector),
) -> Result<Entered, Error> {
    let watchdog = Instant::now() + Duration::from_secs(30);
    let mut now = begin;
    loop {
        if let Some(outcome) = connector.step(&Secret::from_text(KEY), now) {
            return outcome;
        }
        assert!(Instant::now() < watchdog, "the dial does not end");
        now += Duration::from_millis(20);
        work(now, connector);
    }
}

#[test]
fn a_silent_address_does_not_keep_the_dial_from_another() {
    let (_stranger, wrong) = silent();
    let (mut peer, right) = listening(1);
    let (mut connector, begin) = dial(&[&wrong, &right], Duration::from_secs(30));
    let mut silence = None;
    until_the_end(&mut connector, begin, |now, connector| {
        assert!(now < begin + 2 * ATTEMPT);
        silence = silence.take().or(connector.silence(now));
        peer.serve(now, &|_, _| true);
    })
    .unwrap();
    let named = format!("{} took the connection and is silent", wrong.name());
    assert_eq!(silence, Some(named));
}

/// A stopped peer answers when it resumes, on its open connection, however late that is.
#[test]
fn a_dial_that_was_taken_waits_for_its_answer() {
    let (mut peer, route) = listening(1);
    let (_stranger, wrong) = silent();
    let limit = Duration::from_secs(10);
    for routes in [&[&route][..], &[&route, &wrong], &[&wrong, &route]] {
        let (mut connector, begin) = dial(routes, limit);
        let mut has_answered = false;
        until_the_end(&mut connector, begin, |now, connector| {
            if now > begin + 3 * limit {
                let silence = connector.silence(now).unwrap_or_default();
                assert!(has_answered || silence.contains(&route.name()), "{silence}");
                has_answered = true;
                peer.serve(now, &|_, _| true);
            }
        })
        .unwrap();
    }
}

/// There is only one rendezvous, and it has refused.
#[test]
fn a_rendezvous_that_refuses_ends_the_dial_though_another_address_is_silent() {
    let (_stranger, silent) = silent();
    let (mut root, refusing) = listening(1);
    let begin = Instant::now();
    let mut connector = Connector::new(
        "the rendezvous".to_owned(),
        vec![silent, refusing],
        Intent::Rendezvous { world: [0; 8] },
        REFUSAL,
        (begin, begin + Duration::from_secs(120)),
    );
    let error = until_the_end(&mut connector, begin, |now, _| {
        assert!(now < begin + 2 * ATTEMPT);
        root.serve(now, &|_, _| true);
    });
    let error = error.err().unwrap();
    assert!(matches!(error, Error::Protocol { .. }), "{error}");
}

#[test]
fn the_error_names_every_route() {
    let (stranger, wrong) = silent();
    let (unused, refusing) = silent();
    drop(unused);
    let limit = Duration::from_secs(10);
    let (mut connector, begin) = dial(&[&wrong, &refusing], limit);
    let mut stranger = Some(stranger);
    let error = until_the_end(&mut connector, begin, |now, connector| {
        // The stranger exits at last.
        if now > begin + 2 * limit && stranger.take().is_some() {
            assert!(
                connector
                    .silence(now)
                    .is_some_and(|text| text.contains(&wrong.name()))
            );
        }
    });
    let error = error.err().unwrap().to_string();
    assert!(error.contains(&refusing.name()), "{error}");
    assert!(error.contains(&wrong.name()), "{error}");
}

#[test]
fn a_handshake_that_is_broken_off_ends_though_a_child_lives() {
    let (mut peer, route) = listening(1);
    let intent = Intent::Stream {
        from: 0,
        to: 1,
        stream_id: STREAM_ID,
    };
    let begin = Instant::now();
    let deadline = begin + Duration::from_secs(30);
    let name = "rank 1".to_owned();
    let mut connector = Connector::new(name, vec![route], intent, REFUSAL, (begin, deadline));
    while peer.next_wake().is_none() {
        assert!(Instant::now() < deadline);
        assert!(
            connector
                .step(&Secret::from_text(KEY), Instant::now())
                .is_none()
        );
        peer.serve(Instant::now(), &|_, _| true);
    }
    let _child = spark_ccl_testing::Sleeper::fork();
    drop(connector);
    // Long before the handshake would time out.
    let soon = Instant::now() + Duration::from_secs(2);
    while peer.next_wake().is_some() {
        assert!(Instant::now() < soon, "the connection is still open");
        assert!(peer.serve(Instant::now(), &|_, _| true).is_empty());
    }
}

/// An address that neither accepts nor refuses connections: its backlog is full.
fn dead() -> (Vec<Socket>, Route) {
    let listener = Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    listener
        .bind(&Address::LOOPBACK.with_port(0).into())
        .unwrap();
    listener.listen(0).unwrap();
    let target = listener.local_addr().unwrap().as_socket().unwrap();
    let fill = net::begin_tcp(None, target).unwrap().0;
    let source = None;
    (vec![listener, fill], Route::Tcp { source, target })
}

/// The route from a source that the connecting rank chose.
fn chosen(route: &Route) -> Route {
    let &Route::Tcp { target, .. } = route else {
        unreachable!("tests here have no other routes")
    };
    let source = Some(target.ip().into());
    Route::Tcp { source, target }
}

#[test]
fn routes_that_do_not_connect_are_not_waited_for() {
    let dead: Vec<_> = (0..6).map(|_| dead()).collect();
    let (mut peer, right) = listening(1);
    let routes: Vec<_> = dead
        .iter()
        .map(|(_, route)| route)
        .chain([&right])
        .collect();
    let (mut connector, begin) = dial(&routes, Duration::from_secs(30));
    until_the_end(&mut connector, begin, |now, _| {
        assert!(now < begin + ATTEMPT, "a dead route has held up the others");
        peer.serve(now, &|_, _| true);
    })
    .unwrap();
    // None of them was chosen, so there is nothing to report.
    assert_eq!(connector.unchosen_route(), None);
}

#[test]
fn a_chosen_route_that_does_not_answer_is_passed_over_and_named() {
    let (_sockets, wrong) = dead();
    let (mut peer, right) = listening(1);
    let wrong = chosen(&wrong);
    let (mut connector, begin) = dial(&[&wrong, &right], Duration::from_secs(30));
    until_the_end(&mut connector, begin, |now, connector| {
        let is_early = now <= begin + wrong.patience();
        assert!(
            !is_early || connector.attempts.len() == 1,
            "it has not got its time"
        );
        peer.serve(now, &|_, _| true);
    })
    .unwrap();
    let (used, wrong) = (right.name(), wrong.name());
    let expected = format!("data for rank 1 go to {used}, since {wrong}: no answer in time");
    assert_eq!(connector.unchosen_route(), Some(expected));
}

#[test]
fn a_chosen_route_that_carries_is_the_only_one() {
    let (mut peer, right) = listening(1);
    let (_stranger, other) = silent();
    let (mut connector, begin) = dial(&[&chosen(&right), &other], Duration::from_secs(30));
    until_the_end(&mut connector, begin, |now, connector| {
        assert_eq!(connector.attempts.len(), 1);
        peer.serve(now, &|_, _| true);
    })
    .unwrap();
    assert_eq!(connector.unchosen_route(), None);
}

/// Two routes to the peer connect at once. The peer must not take both for the stream, and must
/// forget the one that is closed.
#[test]
fn only_one_connection_gets_the_proof() {
    let (mut peer, route) = listening(1);
    let (mut connector, now) = dial(&[&route, &route], Duration::from_secs(30));
    for index in 0..2 {
        connector.next = index;
        connector.begin(now);
    }
    let watchdog = Instant::now() + Duration::from_secs(30);
    let mut admitted = Vec::new();
    let mut entered = None;
    while entered.is_none() {
        assert!(Instant::now() < watchdog);
        // Both answers have arrived before the connecting rank reads one.
        admitted.extend(peer.serve(now, &|_, _| true));
        entered = connector.step(&Secret::from_text(KEY), now);
        let proved = connector.attempts.iter().filter(|one| one.is_proving(now));
        assert!(proved.count() <= 1);
    }
    entered.unwrap().unwrap();
    while peer.next_wake().is_some() {
        assert!(
            Instant::now() < watchdog,
            "the peer keeps the other connection"
        );
        admitted.extend(peer.serve(now, &|_, _| true));
    }
    assert_eq!(admitted.len(), 1);
    assert_eq!(peer.refused().unproved.count, 0);
}

#[test]
fn a_peer_that_does_not_listen_yet_is_reached_though_another_address_is_dead() {
    let (_sockets, dead) = dead();
    let (unused, right) = silent();
    drop(unused);
    let Route::Tcp { target, .. } = right else {
        unreachable!("it is one of TCP")
    };
    let mut peer = None;
    let (mut connector, begin) = dial(&[&dead, &right], Duration::from_secs(30));
    until_the_end(&mut connector, begin, |now, _| {
        assert!(
            now < begin + ATTEMPT,
            "the dead address has held up the other"
        );
        let incoming = peer.get_or_insert_with(|| {
            let listener = net::listen_tcp(target).unwrap();
            let role = ListenerRole::Streams { rank: 1, size: 2 };
            Incoming::new(role, Keys::one(Secret::from_text(KEY)), vec![listener])
        });
        incoming.serve(now, &|_, _| true);
    })
    .unwrap();
}

/// Steps the dial in real time.
fn as_time_goes_by(connector: &mut Connector) -> Result<Entered, Error> {
    let watchdog = Instant::now() + Duration::from_secs(20);
    loop {
        let now = Instant::now();
        if let Some(outcome) = connector.step(&Secret::from_text(KEY), now) {
            return outcome;
        }
        assert!(now < watchdog, "the dial does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Between hosts, an answer never arrives in the step that asks for it.
#[test]
fn a_refusal_that_takes_its_time_ends_the_dial() {
    let (sockets, route) = dead();
    let (mut connector, begin) = dial(&[&route], Duration::from_secs(120));
    assert!(connector.step(&Secret::from_text(KEY), begin).is_none());
    drop(sockets);
    let error = as_time_goes_by(&mut connector).err().unwrap();
    assert!(
        matches!(error, Error::Unreachable { refused: true, .. }),
        "{error}"
    );
}

#[test]
fn a_rendezvous_that_refuses_ends_the_dial_though_another_address_is_dead() {
    let (_sockets, dead) = dead();
    let (mut root, refusing) = listening(1);
    for routes in [[&dead, &refusing], [&refusing, &dead]] {
        let begin = Instant::now();
        let mut connector = Connector::new(
            "the rendezvous".to_owned(),
            routes.map(Clone::clone).to_vec(),
            Intent::Rendezvous { world: [0; 8] },
            REFUSAL,
            (begin, begin + Duration::from_secs(120)),
        );
        let error = until_the_end(&mut connector, begin, |now, _| {
            assert!(now < begin + 3 * ATTEMPT);
            root.serve(now, &|_, _| true);
        });
        let error = error.err().unwrap();
        assert!(matches!(error, Error::Protocol { .. }), "{error}");
    }
}

#[test]
fn a_dial_that_others_may_pass_on_gives_up_when_its_patience_ends() {
    let (_sockets, dead) = dead();
    let (unused, refusing) = silent();
    drop(unused);
    for routes in [&[&dead][..], &[&dead, &refusing], &[&refusing, &dead]] {
        let (connector, begin) = dial(routes, Duration::from_secs(120));
        let until = begin + Duration::from_secs(2);
        let mut connector = connector.with_patience(until);
        let error = until_the_end(&mut connector, begin, |now, _| {
            assert!(now <= until, "it begins another round");
        });
        let error = error.err().unwrap();
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    }
}

/// The kernel accepts the connection; the process is busy or stopped.
#[test]
fn a_peer_that_has_taken_the_dial_may_answer_when_patience_has_ended() {
    let (mut peer, right) = listening(1);
    let (connector, begin) = dial(&[&right], Duration::from_secs(120));
    let until = begin + Duration::from_millis(250);
    let mut connector = connector.at_once().with_patience(until);
    until_the_end(&mut connector, begin, |now, _| {
        if now > until + Duration::from_secs(60) {
            peer.serve(now, &|_, _| true);
        }
    })
    .unwrap();
}

#[test]
fn a_dial_may_try_all_routes_at_once() {
    let dead: Vec<_> = (0..6).map(|_| dead()).collect();
    let (mut peer, right) = listening(1);
    let routes = dead.iter().map(|(_, route)| route);
    let routes: Vec<_> = routes.chain([&right]).collect();
    let (connector, begin) = dial(&routes, Duration::from_secs(120));
    let mut connector = connector.at_once();
    assert!(connector.step(&Secret::from_text(KEY), begin).is_none());
    assert_eq!(connector.attempts.len(), routes.len());
    until_the_end(&mut connector, begin, |now, _| {
        peer.serve(now, &|_, _| true);
    })
    .unwrap();
}

#[test]
fn more_routes_are_asked_for_when_none_leads_to_the_peer() {
    let (_sockets, dead) = dead();
    let (mut peer, right) = listening(1);
    let (connector, begin) = dial(&[&dead], Duration::from_secs(120));
    let mut connector = connector.with_more();
    let mut now = begin;
    while !connector.is_at_a_loss() {
        assert!(connector.step(&Secret::from_text(KEY), now).is_none());
        assert!(now < begin + 2 * ATTEMPT);
        now += Duration::from_millis(20);
    }
    connector.add(vec![right]);
    until_the_end(&mut connector, now, |now, _| {
        peer.serve(now, &|_, _| true);
    })
    .unwrap();
}
