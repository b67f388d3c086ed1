//! Tests of the messages that two ranks exchange while they connect.

use std::cell::Cell;
use std::io::Write;
use std::thread;

use socket2::{Domain, Type};

use super::*;

fn streams() -> [Socket; 2] {
    let (here, there) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
    [here, there]
}

fn within(seconds: u64, go_on: &dyn Fn() -> bool) -> Wait<'_> {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    Wait { deadline, go_on }
}

fn offer() -> Offer {
    let end = End {
        qp_num: u32::MAX,
        psn: u32::MAX,
        rkey: u32::MAX,
        reads: u8::MAX,
    };
    Offer {
        start: u64::MAX,
        ends: vec![end; MOST_PAIRS],
    }
}

#[test]
fn the_largest_messages_fit() {
    let problem = Err::<Offer, _>("\0".repeat(MAX_PROBLEM));
    let longest =
        [Ok::<_, String>(offer()), problem].map(|said| serde_json::to_vec(&said).unwrap());
    assert!(longest.iter().all(|bytes| bytes.len() <= MAX_BYTES));
}

#[test]
fn ranks_exchange_more_than_the_kernel_keeps() {
    let streams = streams();
    for stream in &streams {
        stream.set_send_buffer_size(4096).unwrap();
    }
    let exchange = |stream: &Socket| {
        let wait = within(20, &|| true);
        let negotiation = Negotiation { stream, wait };
        let heard = negotiation.exchange(Ok(offer()))?.1;
        // The bytes that follow belong to another message.
        Ok::<_, NoLink>((heard, negotiation.exchange(Ok(7))?.1))
    };
    let [first, second] = thread::scope(|scope| {
        let threads = streams
            .each_ref()
            .map(|stream| scope.spawn(|| exchange(stream)));
        threads.map(|thread| thread.join().unwrap().unwrap())
    });
    assert_eq!(first, (offer(), 7));
    assert_eq!(second, first);
}

#[test]
fn a_long_problem_is_told_in_part() {
    let [here, there] = &streams();
    let say = |stream, said: Result<u8, String>| {
        let wait = within(20, &|| true);
        Negotiation { stream, wait }.exchange(said)
    };
    let there = thread::scope(|scope| {
        let there = scope.spawn(|| say(there, Ok(1)));
        say(here, Err("x".repeat(1 << 20))).unwrap_err();
        there.join().unwrap()
    });
    let NoLink::There(problem) = there.unwrap_err() else {
        panic!("the peer has not told its problem");
    };
    assert_eq!(problem.len(), MAX_PROBLEM);
}

#[test]
fn nobody_waits_for_a_silent_peer_without_a_reason() {
    let [stream, _silent] = &streams();
    let asked = Cell::new(0);
    let go_on = || {
        asked.set(asked.get() + 1);
        asked.get() < 3
    };
    let wait = within(600, &go_on);
    let error = Negotiation { stream, wait }.exchange(Ok(1)).unwrap_err();
    assert!(matches!(error, NoLink::Interrupted), "{error}");
    assert!(!error.is_agreed());
    assert_eq!(asked.get(), 3);
}

#[test]
fn a_silent_peer_is_given_up_at_the_deadline() {
    let [stream, _silent] = &streams();
    let wait = within(0, &|| true);
    let error = Negotiation { stream, wait }.exchange(Ok(1)).unwrap_err();
    let NoLink::Stream(error) = error else {
        panic!("{error}");
    };
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
}

#[test]
fn what_no_rank_says_is_refused() {
    let heard = |said: &[u8]| {
        let [stream, peer] = &streams();
        (&*peer).write_all(said).unwrap();
        peer.shutdown(std::net::Shutdown::Write).unwrap();
        let wait = within(20, &|| true);
        Negotiation { stream, wait }.exchange(Ok(1)).unwrap_err()
    };
    let long = (MAX_BYTES as u32 + 1).to_le_bytes();
    assert!(matches!(heard(&long), NoLink::Answer(_)));
    assert!(matches!(heard(&[1, 0, 0, 0, b'x']), NoLink::Answer(_)));
    for cut in [&[][..], &[1, 0], &[9, 0, 0, 0, b'1']] {
        let NoLink::Stream(error) = heard(cut) else {
            panic!("{cut:?} makes sense");
        };
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
