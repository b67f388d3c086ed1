//! Tests of requests that own their buffers.

use std::time::{Duration, Instant};

use spark_ccl_verbs::{
    Access, AddressVector, Ended, Exposed, Init, PairOptions, Peer, QueuePair, ReceiveOptions,
    Registered, Requests, SendOptions, Status,
};

use crate::ends::{TestPort, test_ports};

struct Side {
    requests: Requests<Vec<u8>>,
    exposed: Exposed,
}

fn pair(test_port: &TestPort) -> QueuePair<Init> {
    let domain = test_port.context.protection_domain().unwrap();
    let queue = test_port.context.completion_queue(64).unwrap();
    let options = PairOptions {
        inline: 64,
        ..PairOptions::new(&queue)
    };
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    domain
        .queue_pair(&options)
        .unwrap()
        .init(1, access)
        .unwrap()
}

fn side(test_port: &TestPort, pair: QueuePair<Init>, peer: &Peer) -> Side {
    let way = AddressVector::new(
        &test_port.port,
        &test_port.gid,
        peer,
        test_port.port.active_mtu,
    )
    .unwrap();
    let options = ReceiveOptions {
        reads_answered: 4,
        ..ReceiveOptions::default()
    };
    let pair = pair.ready_to_receive(&way, options).unwrap();
    let options = SendOptions {
        timeout: 10,
        retries: 3,
        ..SendOptions::default()
    };
    let pair = pair.ready_to_send(options).unwrap();
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let exposed = pair.domain().expose(4096, access).unwrap();
    Side {
        requests: Requests::new(pair),
        exposed,
    }
}

fn sides() -> Option<(Side, Side)> {
    let (here, there) = test_ports()?;
    let (one, other) = (pair(&here), pair(&there));
    let peer = |test_port: &TestPort, number| Peer {
        gid: test_port.gid.gid,
        kind: test_port.gid.kind,
        qp_num: number,
    };
    let (to_one, to_other) = (peer(&here, one.number()), peer(&there, other.number()));
    Some((side(&here, one, &to_other), side(&there, other, &to_one)))
}

impl Side {
    fn buffer(&self, bytes: &[u8]) -> Registered<Vec<u8>> {
        self.requests
            .pair()
            .domain()
            .register_buffer(bytes.to_vec())
            .unwrap()
    }

    /// The next request to end, which must do so within seconds.
    fn next(&mut self) -> Ended<Vec<u8>> {
        let start = Instant::now();
        loop {
            if let Some(ended) = self.requests.poll().unwrap().pop() {
                return ended;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "nothing ends");
            std::thread::yield_now();
        }
    }
}

#[test]
fn buffers_go_and_come_back() {
    let Some((mut one, mut other)) = sides() else {
        return;
    };
    let received = other.requests.receive(other.buffer(&[0; 16])).unwrap();
    let sent = one.requests.send(one.buffer(b"a message"), 2..9).unwrap();
    let ended = one.next();
    assert_eq!(ended.ticket, sent);
    assert_eq!(&ended.buffer[..], b"a message");
    let ended = other.next();
    assert_eq!((ended.ticket, ended.result.unwrap().bytes), (received, 7));
    assert_eq!(&ended.buffer.into_inner().unwrap()[..8], b"message\0");
}

#[test]
fn exposed_memory_is_written_read_and_counted() {
    let Some((mut one, mut other)) = sides() else {
        return;
    };
    let long = vec![9; 1000];
    let target = other.exposed.remote(8..1008).unwrap();
    one.requests
        .write(one.buffer(&long), 0..1000, target)
        .unwrap();
    assert!(one.next().result.is_ok());
    let mut seen = vec![0; 1008];
    other.exposed.read(0, &mut seen).unwrap();
    assert_eq!(seen, [&[0; 8][..], &long].concat());
    other.exposed.write(16, &41_u64.to_ne_bytes()).unwrap();
    let word = other.exposed.remote(16..24).unwrap();
    one.requests
        .fetch_add(one.buffer(&[0; 8]), word, 1)
        .unwrap();
    assert_eq!(one.next().buffer[..], 41_u64.to_ne_bytes());
    one.requests
        .compare_swap(one.buffer(&[0; 8]), word, 42, 5)
        .unwrap();
    assert_eq!(one.next().buffer[..], 42_u64.to_ne_bytes());
    assert_eq!(other.exposed.load(16).unwrap(), 5);
    one.requests.read(one.buffer(&[1; 8]), 0..8, word).unwrap();
    assert_eq!(one.next().buffer[..], 5_u64.to_ne_bytes());
}

#[test]
fn buffers_come_back_from_a_failure() {
    let Some((mut one, mut other)) = sides() else {
        return;
    };
    other.requests.receive(other.buffer(&[0; 4])).unwrap();
    one.requests.send(one.buffer(&[1; 100]), 0..100).unwrap();
    assert!(one.next().result.is_err());
    let ended = other.next();
    assert!(ended.result.is_err());
    ended.buffer.into_inner().unwrap();
    one.requests.send(one.buffer(&[1; 100]), 0..100).unwrap();
    assert_eq!(one.next().result.unwrap_err().status, Status::Flushed);
}

#[test]
fn what_does_not_end_can_be_given_up() {
    let Some((one, mut other)) = sides() else {
        return;
    };
    let received = other.requests.receive(other.buffer(b"untouched")).unwrap();
    assert!(other.requests.poll().unwrap().is_empty());
    let buffers = other.requests.give_up().unwrap();
    assert_eq!(buffers, [(received, b"untouched".to_vec())]);
    drop(one);
}
