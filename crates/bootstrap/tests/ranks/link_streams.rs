//! Streams of links: one for each id, no matter which end asks.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use socket2::Socket;
use spark_ccl_bootstrap::{
    Delivery, Error, Negotiation, NegotiationTurn, Session, StreamEnd, StreamHandler, StreamKind,
    Via,
};
use spark_ccl_fork::Unshared;
use spark_ccl_seal::Stream;
use spark_ccl_testing::Sleeper;

use crate::common::{TCP, WATCHDOG, in_parallel, soon, stream_id, world};

const CONTEXT: u64 = 7;

fn handle_streams(session: &Session, context: u64) -> Receiver<Delivery> {
    let (sender, receiver) = channel();
    let handler: StreamHandler = Arc::new(move |delivery| {
        drop(sender.send(delivery));
        None
    });
    session.handle_streams(context, &handler);
    receiver
}

fn next_delivery(receiver: &Receiver<Delivery>) -> Delivery {
    receiver.recv_timeout(WATCHDOG).unwrap()
}

fn link(number: u32) -> spark_ccl_bootstrap::StreamId {
    spark_ccl_bootstrap::StreamId {
        context: CONTEXT,
        ..stream_id(StreamKind::Tcp, number)
    }
}

fn stream(delivery: Delivery) -> (Stream, StreamEnd) {
    delivery.stream.unwrap()
}

/// Both ends send something that the other receives, over the same stream.
fn negotiation(near: &Socket, far: &Socket) {
    for (mut from, mut to) in [(near, far), (far, near)] {
        from.write_all(b"word").unwrap();
        let mut word = [0; 4];
        to.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"word");
    }
}

fn worlds(size: u32) -> [Vec<Session>; 2] {
    [world(size), Session::local(size).unwrap()]
}

#[test]
fn the_end_that_does_not_ask_is_told_before_or_after_it_has_a_handler() {
    for sessions in worlds(2) {
        for (asker, context) in [(0, 1_u64), (1, 2)] {
            let other = &sessions[1 - asker];
            let wanted = spark_ccl_bootstrap::StreamId { context, ..link(0) };
            let near = handle_streams(&sessions[asker], context);
            let peer = other.rank();
            sessions[asker]
                .reach(peer, wanted, &[Via::Unix], soon())
                .unwrap();
            let (near, end) = stream(next_delivery(&near));
            assert_eq!(end, StreamEnd::Connector);
            let delivery = next_delivery(&handle_streams(other, context));
            assert_eq!((delivery.peer, delivery.stream_id), (asker as u32, wanted));
            let (far, end) = stream(delivery);
            assert_eq!(end, StreamEnd::Listener);
            negotiation(&near, &far);
        }
    }
}

/// One end of a negotiation: sends a byte after a pause, and receives one.
struct Chat {
    stream: Unshared<Socket>,
    turn: NegotiationTurn,
    received: Sender<u8>,
    /// How late the byte arrives at the other end.
    delay: Duration,
}

impl Negotiation for Chat {
    fn stream(&self) -> &Socket {
        &self.stream
    }

    fn go_on(&mut self) -> NegotiationTurn {
        self.turn = match self.turn {
            NegotiationTurn::Over => NegotiationTurn::Later,
            NegotiationTurn::Later => {
                let (mut stream, delay) = (self.stream.try_clone().unwrap(), self.delay);
                let mut say = move || {
                    std::thread::sleep(delay);
                    stream.write_all(&[7]).unwrap();
                };
                if delay.is_zero() {
                    say();
                } else {
                    std::thread::spawn(say);
                }
                NegotiationTurn::Reading
            }
            NegotiationTurn::Reading => {
                let mut byte = [0];
                (&*self.stream).read_exact(&mut byte).unwrap();
                self.received.send(byte[0]).unwrap();
                NegotiationTurn::Over
            }
        };
        self.turn
    }
}

#[test]
fn ends_negotiation_before_or_after_both_have_handlers() {
    ends_negotiation(Duration::ZERO);
}

/// A loaded kernel may deliver bytes written to a TCP connection late.
#[test]
fn ends_negotiation_where_the_kernel_takes_its_time() {
    ends_negotiation(Duration::from_millis(200));
}

fn ends_negotiation(delay: Duration) {
    for sessions in worlds(2) {
        for context in [CONTEXT, CONTEXT + 1] {
            let (received, arrivals) = channel();
            let handler: StreamHandler = Arc::new(move |delivery| {
                Some(Box::new(Chat {
                    stream: delivery.stream.unwrap().0.socket,
                    turn: NegotiationTurn::Over,
                    received: received.clone(),
                    delay,
                }))
            });
            sessions[0].handle_streams(context, &handler);
            let wanted = spark_ccl_bootstrap::StreamId { context, ..link(0) };
            if context == CONTEXT {
                sessions[1].handle_streams(context, &handler);
                sessions[0].reach(1, wanted, &[TCP], soon()).unwrap();
            } else {
                sessions[0].reach(1, wanted, &[TCP], soon()).unwrap();
                sessions[1].handle_streams(context, &handler);
            }
            for _ in 0..2 {
                assert_eq!(arrivals.recv_timeout(WATCHDOG), Ok(7));
            }
        }
    }
}

#[test]
fn both_ends_may_ask_at_once() {
    const STREAMS: u32 = 40;
    for sessions in worlds(2) {
        let told: Vec<_> = sessions
            .iter()
            .map(|s| handle_streams(s, CONTEXT))
            .collect();
        let sessions = in_parallel(sessions, |session| {
            for number in 0..STREAMS {
                let peer = 1 - session.rank();
                session.reach(peer, link(number), &[TCP], soon()).unwrap();
            }
            session
        });
        let take = |receiver: &Receiver<Delivery>| {
            let mut all: Vec<_> = (0..STREAMS).map(|_| next_delivery(receiver)).collect();
            all.sort_by_key(|delivery| delivery.stream_id.number);
            all.into_iter().map(stream).collect::<Vec<_>>()
        };
        let (first, second) = (take(&told[0]), take(&told[1]));
        for ((near, a), (far, b)) in first.iter().zip(&second) {
            assert_ne!(a, b);
            negotiation(near, far);
        }
        // Nothing is delivered twice.
        for receiver in &told {
            assert!(receiver.recv_timeout(Duration::from_millis(300)).is_err());
        }
        drop(sessions);
    }
}

#[test]
fn what_comes_for_a_context_that_is_over_is_closed() {
    for sessions in worlds(2) {
        let near = handle_streams(&sessions[0], CONTEXT);
        sessions[1].dismiss(CONTEXT);
        sessions[0].reach(1, link(0), &[Via::Unix], soon()).unwrap();
        let (stream, _) = stream(next_delivery(&near));
        stream.set_read_timeout(Some(WATCHDOG)).unwrap();
        assert_eq!((&*stream).read(&mut [0]).unwrap(), 0);
    }
}

/// Otherwise their peers would take a dead process for a slow one.
#[test]
fn streams_end_though_a_child_lives() {
    for sessions in worlds(2) {
        let told: Vec<_> = sessions
            .iter()
            .map(|s| handle_streams(s, CONTEXT))
            .collect();
        sessions[0].reach(1, link(0), &[TCP], soon()).unwrap();
        let control = stream_id(StreamKind::Control, 0);
        let opened = sessions[0].connect(1, control, TCP, soon()).unwrap();
        let accepted = sessions[1].accept(0, control, soon()).unwrap();
        let [(called, _), (answered, _)] = [0, 1].map(|rank| stream(next_delivery(&told[rank])));
        let _child = Sleeper::fork();
        for (near, far) in [(called, answered), (accepted, opened)] {
            drop(near);
            far.set_read_timeout(Some(WATCHDOG)).unwrap();
            assert_eq!(rustix::io::read(&far.socket, &mut [0_u8]), Ok(0));
        }
    }
}

#[test]
fn who_cannot_be_reached_is_named() {
    let mut sessions = world(2);
    let near = handle_streams(&sessions[0], CONTEXT);
    drop(sessions.pop());
    let deadline = Instant::now() + Duration::from_secs(2);
    sessions[0]
        .reach(1, link(0), &[Via::Unix], deadline)
        .unwrap();
    let delivery = next_delivery(&near);
    assert_eq!((delivery.peer, delivery.stream_id), (1, link(0)));
    let error = delivery.stream.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("rank 1"), "{error}");
}

#[test]
fn a_peer_without_a_way_to_it_is_an_error_at_once() {
    let sessions = world(2);
    let error = sessions[0].reach(1, link(0), &[], soon()).unwrap_err();
    assert!(matches!(error, Error::Argument(_)), "{error}");
    assert!(error.to_string().contains("rank 1"), "{error}");
}
