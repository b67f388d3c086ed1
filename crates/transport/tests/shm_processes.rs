//! Links through shared memory between processes: this test program starts itself as the peer.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use spark_ccl_transport::memory::{SharedMemory, recv_fd, send_fd};
use spark_ccl_transport::shm::{self, Rx, Tx};
use spark_ccl_transport::{Borrowing, Geometry, Lending, LinkError, LinkRx, LinkTx};

const GEOMETRY: Geometry = Geometry {
    slot_bytes: 1024,
    slots: 4,
    channels: 2,
};
/// With slots that are long enough to be worth lending instead.
const LONG: Geometry = Geometry {
    slot_bytes: 64 << 10,
    ..GEOMETRY
};
const LENT: usize = 300_000;
const ROLE: &str = "SPARK_CCL_TEST_PEER";
const MESSAGES: u64 = 20_000;
const REGION: usize = 100_000;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Starts this program again, to run [`peer`] in `role`; its standard input is our stream.
fn start_peer(role: &str) -> (Child, Socket) {
    let (here, there) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "peer", "--nocapture"])
        .env(ROLE, role)
        .stdin(Stdio::from(OwnedFd::from(there)))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    (child, here)
}

/// No test by itself: the other process of the tests below.
#[test]
fn peer() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let stream = Socket::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    match role.as_str() {
        "echo" => {
            let (mut tx, mut rx) = shm::accept(&stream, GEOMETRY, soon()).unwrap();
            while let Some((tag, payload)) = receive(&mut rx, 0) {
                send(&mut tx, 1, tag, &payload);
            }
        }
        "hold" => {
            let _link = shm::accept(&stream, GEOMETRY, soon()).unwrap();
            stream.send(b"!").unwrap();
            std::thread::sleep(Duration::from_secs(60));
        }
        "write" => {
            let passed = recv_fd(&stream, soon()).unwrap();
            let memory = SharedMemory::from_fd(passed.fd, REGION).unwrap();
            fill(&memory, 1);
            stream.send(b"!").unwrap();
            wait_for_byte(&stream);
            fill(&memory, 2);
            stream.send(b"!").unwrap();
        }
        "lend" => {
            let (mut tx, _rx) = shm::accept(&stream, LONG, soon()).unwrap();
            tx.allow_lending();
            send(&mut tx, 0, 0, &vec![7; 64 << 10]);
            wait_for_byte(&stream);
            let payload: Vec<u8> = (0..LENT).map(|index| (index % 251) as u8).collect();
            let answer = match tx.lend(0, &payload, 1).unwrap() {
                Lending::Lent(_) => b"l",
                _ => b"u",
            };
            stream.send(answer).unwrap();
            wait_for_byte(&stream);
        }
        other => panic!("unknown role {other}"),
    }
}

fn send(tx: &mut Tx, channel: usize, tag: u64, payload: &[u8]) {
    let deadline = soon();
    loop {
        if let Some(slot) = tx.reserve(channel, payload.len()).unwrap() {
            slot.copy_from_slice(payload);
            break;
        }
        assert!(Instant::now() < deadline, "no slot for message {tag}");
        std::thread::yield_now();
    }
    tx.commit(channel, payload.len(), tag).unwrap();
}

/// The next message, or `None` at the end.
fn receive(rx: &mut Rx, channel: usize) -> Option<(u64, Vec<u8>)> {
    let deadline = soon();
    loop {
        match rx.peek(channel) {
            Ok(Some(arrival)) => {
                let message = (arrival.tag, arrival.payload.to_vec());
                rx.release(channel);
                return Some(message);
            }
            Ok(None) => {}
            Err(LinkError::Closed) => return None,
            Err(error) => panic!("{error}"),
        }
        assert!(Instant::now() < deadline, "no message");
        std::thread::yield_now();
    }
}

fn payload(number: u64) -> Vec<u8> {
    vec![number as u8; (number as usize * 37) % (GEOMETRY.slot_bytes + 1)]
}

fn wait_for_byte(stream: &Socket) {
    let mut byte = [std::mem::MaybeUninit::uninit()];
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    assert_eq!(stream.recv(&mut byte).unwrap(), 1);
}

fn fill(memory: &SharedMemory, value: u8) {
    // SAFETY: the whole of a live mapping; the other process reads it only after it was told.
    unsafe { memory.as_ptr().write_bytes(value, memory.len()) };
}

fn all_are(memory: &SharedMemory, value: u8) -> bool {
    // SAFETY: every index lies within a live mapping.
    (0..memory.len()).all(|at| unsafe { memory.as_ptr().add(at).read_volatile() } == value)
}

#[test]
fn messages_go_to_another_process_and_back() {
    let (mut child, stream) = start_peer("echo");
    let (mut tx, mut rx) = shm::offer(&stream, GEOMETRY, soon()).unwrap();
    let window = GEOMETRY.slots as u64;
    for number in 0..MESSAGES + window {
        if number < MESSAGES {
            send(&mut tx, 0, number, &payload(number));
        }
        if let Some(echoed) = number.checked_sub(window) {
            assert_eq!(receive(&mut rx, 1), Some((echoed, payload(echoed))));
        }
    }
    drop(tx);
    assert_eq!(receive(&mut rx, 1), None);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_killed_peer_leaves_the_link_quiet_and_nothing_behind() {
    let (mut child, stream) = start_peer("hold");
    let (mut tx, mut rx) = shm::offer(&stream, GEOMETRY, soon()).unwrap();
    wait_for_byte(&stream);
    child.kill().unwrap();
    child.wait().unwrap();
    // Nobody said goodbye: that the peer is dead is for others to find out.
    assert!(rx.peek(0).unwrap().is_none());
    let mut sent = 0;
    while tx.reserve(0, 1).unwrap().is_some() {
        tx.commit(0, 1, sent).unwrap();
        sent += 1;
    }
    assert!(sent >= GEOMETRY.slots as u64, "{sent}");
    let left: Vec<_> = std::fs::read_dir("/dev/shm")
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().contains("spark-ccl"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_private_copy_is_out_of_the_peers_reach() {
    let (mut child, stream) = start_peer("write");
    let (memory, fd) = SharedMemory::create(REGION).unwrap();
    send_fd(&stream, fd.as_fd(), 0, REGION as u64, soon()).unwrap();
    wait_for_byte(&stream);
    assert!(all_are(&memory, 1));
    memory.make_private().unwrap();
    stream.send(b"!").unwrap();
    wait_for_byte(&stream);
    assert!(all_are(&memory, 1), "a peer wrote into private memory");
    assert!(child.wait().unwrap().success());
}

/// Where the kernel lets nobody read another process, nothing is lent.
#[test]
fn another_processs_memory_is_read_where_it_lies() {
    let (mut child, stream) = start_peer("lend");
    let (_tx, mut rx) = shm::offer(&stream, LONG, soon()).unwrap();
    assert_eq!(receive(&mut rx, 0), Some((0, vec![7; 64 << 10])));
    stream.send(b"!").unwrap();
    let mut answer = [std::mem::MaybeUninit::new(0)];
    stream.recv(&mut answer).unwrap();
    // SAFETY: it was initialised, and then written to.
    if unsafe { answer[0].assume_init() } == b'l' {
        let mut room = vec![0; LENT];
        assert_eq!(rx.borrow(0, &mut room, 1).unwrap(), Borrowing::Done(LENT));
        let is_right = |(index, &byte): (usize, &u8)| byte == (index % 251) as u8;
        assert!(room.iter().enumerate().all(is_right));
    } else {
        eprintln!("skipped: the kernel lets nobody read another process's memory");
    }
    stream.send(b"!").unwrap();
    assert!(child.wait().unwrap().success());
}
