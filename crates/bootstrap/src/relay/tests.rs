//! Rank 0 dials rank 2 by way of rank 1.

use spark_ccl_seal::Stream;

use super::*;
use crate::address::Address;
use crate::connector::Connector;
use crate::handshake::{Entered, Intent};
use crate::incoming::{Admitted, Incoming, ListenerRole};
use crate::keys::Keys;
use crate::{Error, Secret, StreamId, StreamKind};

const KEY: &[u8] = b"the key";
const INTENT: Intent = Intent::Stream {
    from: 0,
    to: 2,
    stream_id: StreamId {
        context: 1,
        kind: StreamKind::Tcp,
        number: 0,
    },
};

/// The listener of a rank of three, and the route to it.
fn listening(rank: u32) -> (Incoming, Route) {
    let listener = net::listen_tcp(Address::LOOPBACK.with_port(0)).unwrap();
    let target = listener.local_addr().unwrap().as_socket().unwrap();
    let role = ListenerRole::Streams { rank, size: 3 };
    let incoming = Incoming::new(role, Keys::one(Secret::from_text(KEY)), vec![listener]);
    let source = None;
    (incoming, Route::Tcp { source, target })
}

fn dialling(way: Route, deadline: Instant) -> Connector {
    let name = "rank 2".to_owned();
    let times = (Instant::now(), deadline);
    Connector::new(name, vec![way], INTENT, Duration::from_millis(500), times)
}

struct Ring {
    relay: Incoming,
    relays: Relays,
    /// The routes from rank 1 to rank 2.
    onward: Vec<Route>,
    last: Incoming,
    /// From rank 0 to rank 2.
    way: Route,
    connector: Connector,
    deadline: Instant,
    arrived: Option<Stream>,
}

impl Ring {
    fn new() -> Self {
        let (relay, to_relay) = listening(1);
        let (last, to_last) = listening(2);
        let now = Instant::now();
        let deadline = now + Duration::from_secs(30);
        let way = Route::Relayed {
            first: Box::new(to_relay),
            relays: vec![Intent::Relay { from: 0, next: 2 }],
        };
        Self {
            relay,
            relays: Relays::default(),
            onward: vec![to_last],
            last,
            connector: dialling(way.clone(), deadline),
            way,
            deadline,
            arrived: None,
        }
    }

    /// Serves ranks 1 and 2 once.
    fn serve(&mut self) {
        let now = Instant::now();
        assert!(now < self.deadline);
        for admitted in self.relay.serve(now, &|_, _| true) {
            let Admitted::Relay { next: 2, near } = admitted else {
                panic!("not to be passed on to rank 2");
            };
            self.relays.begin(near, &self.onward, now);
        }
        self.relays.serve(now);
        for admitted in self.last.serve(now, &|_, _| true) {
            let Admitted::Stream {
                from: 0, stream, ..
            } = admitted
            else {
                panic!("no stream of rank 0");
            };
            self.arrived = Some(stream);
        }
    }

    /// Rank 0's outcome.
    fn dial(&mut self, key: &Secret) -> Result<Stream, Error> {
        loop {
            self.serve();
            if let Some(outcome) = self.connector.step(key, Instant::now()) {
                return outcome.map(Entered::into_stream);
            }
        }
    }

    fn meet(&mut self) -> (Stream, Stream) {
        let near = self.dial(&Secret::from_text(KEY)).unwrap();
        while self.arrived.is_none() {
            self.serve();
        }
        (near, self.arrived.take().unwrap())
    }
}

#[test]
fn both_ends_prove_themselves_to_each_other_and_bytes_pass_both_ways() {
    let mut ring = Ring::new();
    let (near, far) = ring.meet();
    let (mut ours, mut theirs) = (near.seals.unwrap(), far.seals.unwrap());
    let tag = ours.sealer.tag(&[b"a message"]);
    assert!(theirs.opener.check(&[b"a message"], &tag).is_ok());
    // More bytes than the sockets and the relay hold, so that both directions are held up in turn.
    let sent: Vec<u8> = (0..10_000_000u32).map(|byte| (byte % 251) as u8).collect();
    for (from, to) in [(&near.socket, &far.socket), (&far.socket, &near.socket)] {
        let (mut written, mut read) = (0, Vec::new());
        let mut piece = vec![0; 100_000];
        while read.len() < sent.len() {
            written += net::try_write(from, &sent[written..]).unwrap().unwrap_or(0);
            ring.serve();
            let count = net::try_read(to, &mut piece).unwrap().unwrap_or(0);
            read.extend_from_slice(&piece[..count]);
        }
        assert!(read == sent);
    }
}

#[test]
fn the_end_of_each_direction_is_passed_on_and_then_nothing_is_kept() {
    let mut ring = Ring::new();
    let (near, far) = ring.meet();
    let mut buffer = [0; 9];
    net::try_write(&near.socket, b"last word").unwrap();
    near.socket.shutdown(Shutdown::Write).unwrap();
    let mut until = |ring: &mut Ring, from: &Socket| {
        loop {
            ring.serve();
            if let Some(count) = net::try_read(from, &mut buffer).unwrap() {
                return buffer[..count].to_vec();
            }
        }
    };
    assert_eq!(until(&mut ring, &far.socket), b"last word");
    assert_eq!(until(&mut ring, &far.socket), b"");
    net::try_write(&far.socket, b"answer").unwrap();
    assert_eq!(until(&mut ring, &near.socket), b"answer");
    drop(far);
    assert_eq!(until(&mut ring, &near.socket), b"");
    assert!(ring.relays.joined.is_empty() && ring.relays.dialling.is_empty());
}

#[test]
fn a_connector_hears_that_the_next_rank_is_not_reached() {
    let mut ring = Ring::new();
    ring.onward.clear();
    ring.connector = dialling(ring.way.clone(), Instant::now() + Duration::from_secs(1));
    let error = ring.dial(&Secret::from_text(KEY)).map(drop).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("does not reach the next one"), "{text}");
}

#[test]
fn a_connector_tries_again_where_the_next_rank_was_not_reached() {
    let mut ring = Ring::new();
    let onward = std::mem::take(&mut ring.onward);
    for _ in 0..10 {
        ring.serve();
        let step = ring.connector.step(&Secret::from_text(KEY), Instant::now());
        assert!(step.is_none());
    }
    ring.onward = onward;
    ring.meet();
}

/// The connection stays open: its ends are not done, but no longer need this rank.
#[test]
fn what_is_on_its_way_is_passed_on_when_the_relay_ends() {
    let mut ring = Ring::new();
    let (near, far) = ring.meet();
    let sent = vec![7; 1_000_000];
    let reader = std::thread::spawn(move || {
        let mut read = Vec::new();
        std::io::Read::read_to_end(&mut &*far.socket, &mut read).unwrap();
        read.len()
    });
    let relays = ring.relays;
    let relay = std::thread::spawn(|| relays.drain());
    net::write_all(&near.socket, &sent, ring.deadline).unwrap();
    relay.join().unwrap();
    assert_eq!(reader.join().unwrap(), sent.len());
    drop(near);
}

#[test]
fn nothing_is_passed_on_for_one_that_has_another_secret() {
    let mut ring = Ring::new();
    let error = ring
        .dial(&Secret::from_text(b"another"))
        .map(drop)
        .unwrap_err();
    assert!(matches!(error, Error::Auth { .. }), "{error}");
    assert!(ring.relays.joined.is_empty() && ring.relays.dialling.is_empty());
}
