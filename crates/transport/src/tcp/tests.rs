//! Links over real sockets on the loopback interface.

mod cable;
mod cables;
mod direct;
mod ending;
mod lending;
mod spares;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use socket2::Socket;
use spark_ccl_fork::Unshared;
use spark_ccl_testing::{Need, has};

use super::{HEADER_BYTES, Header, Rx, Tx, link};
use crate::conformance::{self, Harness, LinkEnd};
use crate::{Direct, Geometry, LinkError, LinkRx, LinkTx};

const WATCHDOG: Duration = Duration::from_secs(30);
const SMALL: Geometry = Geometry {
    slot_bytes: 256,
    slots: 4,
};

fn tcp_pair(host: SocketAddr) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(host).unwrap();
    let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (listener.accept().unwrap().0, there)
}

fn v4() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

/// Both ends of a link over sockets that `pair` makes.
fn ends(
    geometry: Geometry,
    sockets: usize,
    mut pair: impl FnMut() -> (Socket, Socket),
) -> ((Tx, Rx), (Tx, Rx)) {
    let pairs = (0..sockets).map(|_| pair());
    let unshared = |(here, there)| (Unshared::new(here), Unshared::new(there));
    let (here, there) = pairs.map(unshared).unzip();
    (
        link(here, geometry).unwrap(),
        link(there, geometry).unwrap(),
    )
}

fn over_tcp(geometry: Geometry, sockets: usize, host: SocketAddr) -> ((Tx, Rx), (Tx, Rx)) {
    ends(geometry, sockets, || {
        let (here, there) = tcp_pair(host);
        (here.into(), there.into())
    })
}

struct Loopback {
    host: SocketAddr,
    sockets: usize,
}

impl Harness for Loopback {
    fn connect(&mut self, geometry: Geometry) -> (LinkEnd, LinkEnd) {
        let (here, there) = over_tcp(geometry, self.sockets, self.host);
        (here.into(), there.into())
    }

    fn exact_credits(&self) -> bool {
        false
    }
}

#[test]
fn conforms_over_ipv4() {
    conformance::run(&mut Loopback {
        host: v4(),
        sockets: 1,
    });
    conformance::run(&mut Loopback {
        host: v4(),
        sockets: 3,
    });
}

#[test]
fn conforms_over_ipv6() {
    let host = (Ipv6Addr::LOCALHOST, 0).into();
    if !has(Need::Ipv6) {
        return;
    }
    conformance::run(&mut Loopback { host, sockets: 1 });
    conformance::run(&mut Loopback { host, sockets: 3 });
}

struct UnixPairs;

impl Harness for UnixPairs {
    fn connect(&mut self, geometry: Geometry) -> (LinkEnd, LinkEnd) {
        let (here, there) = ends(geometry, 2, || {
            let (here, there) = UnixStream::pair().unwrap();
            (here.into(), there.into())
        });
        (here.into(), there.into())
    }

    fn exact_credits(&self) -> bool {
        false
    }
}

#[test]
fn conforms_over_unix_sockets() {
    conformance::run(&mut UnixPairs);
}

fn payload(message: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (message * 7 + at * 13 + (at >> 8)) as u8)
        .collect()
}

fn poll<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(start.elapsed() < WATCHDOG, "waited {WATCHDOG:?} for {what}");
        std::thread::yield_now();
    }
}

fn send(tx: &mut Tx, message: usize, len: usize) {
    poll("a slot", || {
        tx.flush().unwrap();
        tx.reserve(len)
            .unwrap()
            .map(|slot| slot.copy_from_slice(&payload(message, len)))
    });
    tx.commit(len, message as u64).unwrap();
}

fn receive(rx: &mut Rx, message: usize, len: usize) {
    poll("a message", || {
        let arrival = rx.peek().unwrap()?;
        assert_eq!((arrival.tag, arrival.payload.len()), (message as u64, len));
        assert!(
            arrival.payload == payload(message, len),
            "bytes of message {message}"
        );
        Some(())
    });
    rx.release();
}

fn stream(tx: &mut Tx, rx: &mut Rx, lens: &[usize]) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (message, &len) in lens.iter().enumerate() {
                send(tx, message, len);
            }
            poll("flush", || tx.flush().unwrap().then_some(()));
        });
        for (message, &len) in lens.iter().enumerate() {
            receive(rx, message, len);
        }
    });
}

#[test]
fn tiny_kernel_buffers_cut_messages_anywhere() {
    let geometry = Geometry {
        slot_bytes: 64 << 10,
        slots: 3,
    };
    for sockets in [1, 3] {
        let ((mut tx, _rx), (_tx, mut rx)) = ends(geometry, sockets, || {
            let (here, there) = tcp_pair(v4());
            let here = Socket::from(here);
            here.set_send_buffer_size(1).unwrap();
            (here, there.into())
        });
        let lens: Vec<_> = (0..60).map(|n| n * 7919 % ((64 << 10) + 1)).collect();
        stream(&mut tx, &mut rx, &lens);
    }
}

#[test]
fn streams_of_whole_slots_and_of_mixed_sizes() {
    let geometry = Geometry {
        slot_bytes: 64 << 10,
        slots: 8,
    };
    for sockets in [1, 2] {
        let ((mut tx, _rx), (_tx, mut rx)) = over_tcp(geometry, sockets, v4());
        stream(&mut tx, &mut rx, &[64 << 10; 300]);
    }
    let ((mut tx, _rx), (_tx, mut rx)) = over_tcp(geometry, 2, v4());
    let lens: Vec<_> = (0..2000)
        .map(|n| [8, 40_000, 0, 100, 64 << 10, 8][n % 6])
        .collect();
    stream(&mut tx, &mut rx, &lens);
}

/// An end of a link whose peer is a plain socket.
fn raw(geometry: Geometry) -> (TcpStream, Tx, Rx) {
    let (here, there) = tcp_pair(v4());
    let (tx, rx) = link(vec![Unshared::new(here.into())], geometry).unwrap();
    (there, tx, rx)
}

fn frame(message: usize, len: usize) -> Vec<u8> {
    let (sequence, tag) = (message as u64, message as u64);
    let header = Header {
        sequence,
        len: len as u32,
        tag,
    };
    [&header.encode()[..], &payload(message, len)].concat()
}

fn ending(rx: &mut Rx) -> LinkError {
    poll("an error", || {
        rx.peek().map(|arrival| assert!(arrival.is_none())).err()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_stream_may_be_cut_anywhere(
        lens in proptest::collection::vec(0_usize..=20_000, 1..30),
        cuts in proptest::collection::vec(1_usize..=40_000, 1..8),
        direct: bool,
    ) {
        let geometry = Geometry { slot_bytes: 20_032, slots: 2 };
        let (mut peer, _tx, mut rx) = raw(geometry);
        let bytes: Vec<u8> =
            lens.iter().enumerate().flat_map(|(message, &len)| frame(message, len)).collect();
        let mut rest = &bytes[..];
        let mut cuts = cuts.iter().cycle();
        let mut message = 0;
        let mut written = 0;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
            peer.write_all(now).unwrap();
            written += now.len();
            rest = later;
            // Receives whatever is complete now, so that the next bytes find the buffer in all of
            // its states.
            while message < lens.len() {
                let end: usize = lens[..=message].iter().map(|&len| frame(0, len).len()).sum();
                if end > written {
                    break;
                }
                if direct {
                    direct::receive(&mut rx, message, lens[message]);
                } else {
                    receive(&mut rx, message, lens[message]);
                }
                message += 1;
            }
            prop_assert!(rx.peek().unwrap().is_none());
        }
        prop_assert_eq!(message, lens.len());
    }

    #[test]
    fn a_damaged_header_ends_the_stream_and_what_came_before_arrives(
        message in 0_usize..3,
        at in 0_usize..24,
        flip in 1_u8..,
    ) {
        // Only a flip within the length (bytes 16 to 23) may leave a valid header.
        let lens = [64, 0, 256];
        let mut bytes: Vec<u8> = Vec::new();
        for (number, &len) in lens.iter().enumerate() {
            let start = bytes.len();
            bytes.extend(frame(number, len));
            if number == message {
                bytes[start + at] ^= flip;
            }
        }
        let (mut peer, _tx, mut rx) = raw(SMALL);
        peer.write_all(&bytes).unwrap();
        drop(peer);
        for (number, &len) in lens.iter().enumerate().take(message) {
            receive(&mut rx, number, len);
        }
        let mut seen = 0;
        let error = loop {
            match rx.peek() {
                Ok(Some(arrival)) => {
                    prop_assert!(arrival.payload.len() <= SMALL.slot_bytes);
                    seen += 1;
                    rx.release();
                }
                Ok(None) => std::thread::yield_now(),
                Err(error) => break error,
            }
        };
        prop_assert!(seen == 0 || (16..24).contains(&at));
        prop_assert!(matches!(error, LinkError::Protocol(_) | LinkError::Closed), "{}", error);
    }

    #[test]
    fn garbage_never_arrives(bytes in proptest::collection::vec(any::<u8>(), HEADER_BYTES..4000)) {
        let (mut peer, _tx, mut rx) = raw(SMALL);
        peer.write_all(&bytes).unwrap();
        let error = ending(&mut rx);
        prop_assert!(matches!(error, LinkError::Protocol(_)), "{}", error);
    }
}

#[test]
fn a_violation_ends_the_link_for_good() {
    let (mut peer, _tx, mut rx) = raw(SMALL);
    let huge = Header {
        sequence: 0,
        len: u32::MAX,
        tag: 0,
    };
    peer.write_all(&huge.encode()).unwrap();
    let error = ending(&mut rx);
    assert!(
        error.to_string().contains("at most 256, saw 4294967295"),
        "{error}"
    );
    assert!(matches!(rx.peek(), Err(LinkError::Protocol(_))));
}

#[test]
fn wires_that_are_crossed_are_noticed() {
    let (a, b) = (tcp_pair(v4()), tcp_pair(v4()));
    let both = |streams: [TcpStream; 2]| streams.map(|stream| Unshared::new(stream.into())).into();
    let (mut tx, _rx) = link(both([a.0, b.0]), SMALL).unwrap();
    let (_tx, mut rx) = link(both([b.1, a.1]), SMALL).unwrap();
    for tag in 0..2 {
        tx.reserve(8).unwrap().unwrap();
        tx.commit(8, tag).unwrap();
    }
    let error = ending(&mut rx);
    assert!(
        error.to_string().contains("message number 0, saw 1"),
        "{error}"
    );
}

#[test]
fn an_end_within_a_message_is_an_end_after_those_before_it() {
    for cut in [1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 99] {
        let (mut peer, _tx, mut rx) = raw(SMALL);
        peer.write_all(&frame(0, 50)).unwrap();
        peer.write_all(&frame(1, 100)[..cut]).unwrap();
        drop(peer);
        receive(&mut rx, 0, 50);
        assert!(matches!(ending(&mut rx), LinkError::Closed));
        assert!(matches!(rx.peek(), Err(LinkError::Closed)));
    }
}

#[test]
fn what_was_committed_is_sent_before_the_end() {
    let (mut peer, mut tx, rx) = raw(SMALL);
    for message in 0..4 {
        send(&mut tx, message, 256);
    }
    drop((tx, rx));
    let mut bytes = Vec::new();
    peer.read_to_end(&mut bytes).unwrap();
    let expected: Vec<u8> = (0..4).flat_map(|message| frame(message, 256)).collect();
    assert!(bytes == expected);
}

#[test]
fn sockets_must_fit_the_geometry() {
    let sockets = || vec![Unshared::new(tcp_pair(v4()).0.into())];
    let refused = |sockets, geometry| {
        let error = link(sockets, geometry).map(|_| ()).unwrap_err();
        assert!(matches!(error, LinkError::Misuse(_)), "{error}");
    };
    refused(Vec::new(), SMALL);
    refused(sockets(), Geometry { slots: 0, ..SMALL });
    refused(
        sockets(),
        Geometry {
            slot_bytes: 1 << 32,
            ..SMALL
        },
    );
}
