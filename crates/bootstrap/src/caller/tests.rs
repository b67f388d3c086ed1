//! A call survives a wrong server at one address, and refusals by the peer.

use super::*;
use crate::lobby::{Admitted, ListenerRole, Lobby};
use crate::options::Address;
use crate::{Kind, Purpose};

const KEY: &[u8] = b"the key";
const PURPOSE: Purpose = Purpose {
    context: 1,
    kind: Kind::Tcp,
    number: 0,
};

/// The listener of one rank of two, and the route to it.
fn listening(rank: u32) -> (Lobby, Route) {
    let listener = net::listen_tcp(Address::LOOPBACK.with_port(0)).unwrap();
    let target = listener.local_addr().unwrap().as_socket().unwrap();
    let role = ListenerRole::Streams { rank, size: 2 };
    let lobby = Lobby::new(role, Secret::from_text(KEY), vec![listener]);
    let source = None;
    (lobby, Route::Tcp { source, target })
}

/// One of the peer's addresses leads to a stranger, and the peer turns the call down twice.
#[test]
fn a_stranger_at_one_address_does_not_end_the_call() {
    let (mut stranger, wrong) = listening(0);
    let (mut peer, right) = listening(1);
    let intent = Intent::Stream {
        from: 0,
        to: 1,
        purpose: PURPOSE,
    };
    let begin = Instant::now();
    let deadline = begin + Duration::from_secs(30);
    let name = "rank 1".to_owned();
    let mut caller = Caller::new(name, vec![wrong, right], intent, begin, deadline);
    let turned_down = std::cell::Cell::new(0);
    let admits = |_, _| turned_down.replace(turned_down.get() + 1) >= 2;
    let (mut called, mut calling) = (false, None);
    while !called || calling.is_none() {
        let now = Instant::now();
        assert!(now < deadline);
        if calling.is_none() {
            calling = caller.step(&Secret::from_text(KEY), now);
        }
        assert!(stranger.serve(now, &admits).is_empty());
        let connections = peer.serve(now, &admits);
        called |= matches!(connections[..], [Admitted::Stream { from: 0, .. }]);
    }
    calling.unwrap().unwrap();
    assert_eq!(turned_down.get(), 3);
}

#[test]
fn a_handshake_that_is_broken_off_ends_though_a_child_lives() {
    let (mut peer, route) = listening(1);
    let intent = Intent::Stream {
        from: 0,
        to: 1,
        purpose: PURPOSE,
    };
    let begin = Instant::now();
    let deadline = begin + Duration::from_secs(30);
    let mut caller = Caller::new("rank 1".to_owned(), vec![route], intent, begin, deadline);
    while peer.next_wake().is_none() {
        assert!(Instant::now() < deadline);
        assert!(
            caller
                .step(&Secret::from_text(KEY), Instant::now())
                .is_none()
        );
        peer.serve(Instant::now(), &|_, _| true);
    }
    let _child = spark_ccl_testing::Sleeper::fork();
    drop(caller);
    // Long before the handshake would time out.
    let soon = Instant::now() + Duration::from_secs(2);
    while peer.next_wake().is_some() {
        assert!(Instant::now() < soon, "the connection is still open");
        assert!(peer.serve(Instant::now(), &|_, _| true).is_empty());
    }
}
