//! Links over shared memory between processes: this test program starts itself as the peer.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::Read;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use rustix::fs::ftruncate;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use socket2::{Domain, Socket, Type};
use spark_ccl_testing::{Need, has};
use spark_ccl_transport::memory::{SharedMemory, recv_fd, send_fd};
use spark_ccl_transport::shm::{self, Rx, Tx};
use spark_ccl_transport::{Borrowing, Geometry, Lending, LinkError, LinkRx, LinkTx};

const GEOMETRY: Geometry = Geometry {
    slot_bytes: 1024,
    slots: 4,
};
/// With slots so large that messages of a slot's size are lent instead.
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

/// Starts this program again to run [`peer`] in `role`, with the stream as its standard input.
fn start_peer(role: &str) -> (Child, Socket) {
    let (here, there) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "peer", "--nocapture"])
        .env(ROLE, role)
        .stdin(Stdio::from(OwnedFd::from(there)))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    (child, here)
}

/// Not a test by itself: the other process of the tests below.
#[test]
#[ignore = "not a test: the peer process that the other tests of this file start"]
fn peer() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let stream = Socket::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    match role.as_str() {
        "echo" => {
            let (mut tx, mut rx) = shm::accept(&stream, GEOMETRY, soon()).unwrap();
            while let Some((tag, payload)) = receive(&mut rx) {
                send(&mut tx, tag, &payload);
            }
        }
        "hold" => {
            let _link = shm::accept(&stream, GEOMETRY, soon()).unwrap();
            stream.send(b"!").unwrap();
            std::thread::sleep(Duration::from_secs(60));
        }
        "write" => {
            let passed = recv_fd(&stream, soon()).unwrap();
            let memory = SharedMemory::from_fd(passed.fd, REGION, REGION).unwrap();
            fill(&memory, 1);
            stream.send(b"!").unwrap();
            wait_for_byte(&stream);
            fill(&memory, 2);
            stream.send(b"!").unwrap();
        }
        "lend" => {
            let payload = Payload::Ordinary(pattern());
            lend(&stream, &payload, || {});
        }
        "lend-secret" => lend(&stream, &Payload::half_secret(), || {}),
        "lend-undumpable" => {
            let payload = Payload::Ordinary(pattern());
            let change = || set_dumpable_behavior(DumpableBehavior::NotDumpable).unwrap();
            lend(&stream, &payload, change);
        }
        other => panic!("unknown role {other}"),
    }
}

fn send(tx: &mut Tx, tag: u64, payload: &[u8]) {
    let deadline = soon();
    loop {
        if let Some(slot) = tx.reserve(payload.len()).unwrap() {
            slot.copy_from_slice(payload);
            break;
        }
        assert!(Instant::now() < deadline, "no slot for message {tag}");
        std::thread::yield_now();
    }
    tx.commit(payload.len(), tag).unwrap();
}

/// The next message, or `None` at the end.
fn receive(rx: &mut Rx) -> Option<(u64, Vec<u8>)> {
    let deadline = soon();
    loop {
        match rx.peek() {
            Ok(Some(arrival)) => {
                let message = (arrival.tag, arrival.payload.to_vec());
                rx.release();
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
    receive_byte(stream);
}

fn receive_byte(mut stream: &Socket) -> u8 {
    let mut byte = [0];
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    stream.read_exact(&mut byte).unwrap();
    byte[0]
}

fn fill(memory: &SharedMemory, value: u8) {
    // SAFETY: the range is the whole of a live mapping, and the other process reads it only after
    // it has been told that it is written.
    unsafe { memory.as_ptr().write_bytes(value, memory.len()) };
}

fn all_are(memory: &SharedMemory, value: u8) -> bool {
    // SAFETY: every index is less than the length of a live mapping, for whose bytes any value is
    // valid.
    (0..memory.len()).all(|at| unsafe { memory.as_ptr().add(at).read_volatile() } == value)
}

#[test]
fn messages_go_to_another_process_and_back() {
    let (mut child, stream) = start_peer("echo");
    let (mut tx, mut rx) = shm::offer(&stream, GEOMETRY, soon()).unwrap();
    let window = GEOMETRY.slots as u64;
    for number in 0..MESSAGES + window {
        if number < MESSAGES {
            send(&mut tx, number, &payload(number));
        }
        if let Some(echoed) = number.checked_sub(window) {
            assert_eq!(receive(&mut rx), Some((echoed, payload(echoed))));
        }
    }
    drop(tx);
    assert_eq!(receive(&mut rx), None);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_killed_peer_leaves_the_link_quiet_and_nothing_behind() {
    let (mut child, stream) = start_peer("hold");
    let (mut tx, mut rx) = shm::offer(&stream, GEOMETRY, soon()).unwrap();
    wait_for_byte(&stream);
    child.kill().unwrap();
    child.wait().unwrap();
    // The peer did not close the link; detecting its death is not the link's task.
    assert!(rx.peek().unwrap().is_none());
    let mut sent = 0;
    while tx.reserve(1).unwrap().is_some() {
        tx.commit(1, sent).unwrap();
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
    let (memory, fd) = SharedMemory::create(REGION, REGION).unwrap();
    send_fd(&stream, fd.as_fd(), 0, REGION as u64, soon()).unwrap();
    wait_for_byte(&stream);
    assert!(all_are(&memory, 1));
    memory.make_private(0..memory.len()).unwrap();
    stream.send(b"!").unwrap();
    wait_for_byte(&stream);
    assert!(all_are(&memory, 1), "a peer wrote into private memory");
    assert!(child.wait().unwrap().success());
}

/// Lends a message after the receiver has probed whether it can read this process, and calls
/// `change` before the receiver reads it. Then sends another message, lent if possible.
fn lend(stream: &Socket, payload: &Payload, change: impl FnOnce()) {
    let (mut tx, _rx) = shm::accept(stream, LONG, soon()).unwrap();
    tx.allow_lending();
    send(&mut tx, 0, &vec![7; 64 << 10]);
    wait_for_byte(stream);
    let first = try_to_lend(&mut tx, payload, 1);
    stream.send(&[first]).unwrap();
    wait_for_byte(stream);
    change();
    stream.send(b"!").unwrap();
    serve(&mut tx);
    wait_for_byte(stream);
    stream.send(&[try_to_lend(&mut tx, payload, 2)]).unwrap();
    serve(&mut tx);
    send(&mut tx, 3, b"the end");
    wait_for_byte(stream);
}

/// The result, as a byte for the other process.
fn try_to_lend(tx: &mut Tx, payload: &Payload, tag: u64) -> u8 {
    // SAFETY: `lend`, the only caller, borrows `payload` until its link `tx` has been dropped, so
    // the bytes stay and do not change.
    match unsafe { tx.lend(NonNull::from(payload.bytes()), tag) }.unwrap() {
        Lending::Lent { .. } => b'l',
        Lending::NotYet => b'n',
        Lending::Unable => b'u',
    }
}

/// Provides what the receiver cannot read in place, until all loans have returned.
fn serve(tx: &mut Tx) {
    let deadline = soon();
    while !tx.flush().unwrap() {
        assert!(Instant::now() < deadline, "the loan does not return");
        std::thread::yield_now();
    }
}

fn pattern() -> Vec<u8> {
    (0..LENT).map(|index| (index % 251) as u8).collect()
}

/// Memory to lend.
enum Payload {
    Ordinary(Vec<u8>),
    /// Mapped, never unmapped.
    Mapped(&'static [u8]),
}

impl Payload {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Ordinary(bytes) => bytes,
            Self::Mapped(bytes) => bytes,
        }
    }

    /// Ordinary memory, followed by memory that the kernel does not read on behalf of other
    /// processes; device memory is like that.
    fn half_secret() -> Self {
        let bytes = LENT.next_multiple_of(1 << 16);
        let writable = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: this is a new mapping, whose second half is replaced by another one of the same
        // length. Both are readable and writable, zeroed, and never unmapped, and only this
        // function has the address.
        let memory = unsafe {
            let null = std::ptr::null_mut();
            let start = mmap_anonymous(null, bytes, writable, MapFlags::PRIVATE).unwrap();
            let (half, middle) = (bytes / 2, start.byte_add(bytes / 2));
            let secret = libc::syscall(libc::SYS_memfd_secret, 0) as i32;
            assert!(secret >= 0, "{}", std::io::Error::last_os_error());
            let secret = OwnedFd::from_raw_fd(secret);
            ftruncate(&secret, half as u64).unwrap();
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            mmap(middle, half, writable, flags, &secret, 0).unwrap();
            std::slice::from_raw_parts_mut(start.cast::<u8>(), LENT)
        };
        memory.copy_from_slice(&pattern());
        Self::Mapped(memory)
    }
}

/// Receives what a process running [`lend`] sends. Returns the answers of `try_to_lend` for the
/// first message and the second.
fn take_from((mut child, stream): (Child, Socket)) -> [u8; 2] {
    let (_tx, mut rx) = shm::offer(&stream, LONG, soon()).unwrap();
    assert_eq!(receive(&mut rx), Some((0, vec![7; 64 << 10])));
    let mut answers = [0; 2];
    for (tag, answer) in (1..).zip(&mut answers) {
        stream.send(b"!").unwrap();
        *answer = receive_byte(&stream);
        if tag == 1 {
            stream.send(b"!").unwrap();
            wait_for_byte(&stream);
        }
        if *answer == b'l' {
            assert!(borrow_all(&mut rx, tag) == pattern());
        }
    }
    assert_eq!(receive(&mut rx), Some((3, b"the end".to_vec())));
    stream.send(b"!").unwrap();
    assert!(child.wait().unwrap().success());
    answers
}

fn borrow_all(rx: &mut Rx, tag: u64) -> Vec<u8> {
    let (mut got, mut room, deadline) = (Vec::new(), vec![0; LENT], soon());
    while got.len() < LENT {
        // SAFETY: no device writes over a link through shared memory.
        match unsafe { rx.borrow(&mut room, tag, None) }.unwrap() {
            Borrowing::Done(count) => got.extend_from_slice(&room[..count]),
            Borrowing::NotYet => assert!(Instant::now() < deadline, "{} bytes", got.len()),
            Borrowing::Unable => panic!("after {} bytes", got.len()),
        }
    }
    got
}

#[test]
fn another_processs_memory_is_read_where_it_lies() {
    if has(Need::SingleCopy) {
        assert_eq!(take_from(start_peer("lend")), *b"ll");
    }
}

#[test]
fn memory_that_the_kernel_does_not_read_arrives_all_the_same() {
    if has(Need::SingleCopy) && has(Need::SecretMemory) {
        assert_eq!(take_from(start_peer("lend-secret")), *b"lu");
    }
}

#[test]
fn a_process_that_may_not_be_read_any_more_is_heard_all_the_same() {
    if !has(Need::SingleCopy) {
        return;
    }
    let peer = start_peer("lend-undumpable");
    // With this capability, root may read any process.
    let mut own = capabilities(None).unwrap();
    own.effective.remove(CapabilitySet::SYS_PTRACE);
    set_capabilities(None, own).unwrap();
    assert_eq!(take_from(peer), *b"lu");
}

/// In this namespace, the sender's process id belongs to another process.
#[test]
fn a_process_of_another_container_is_not_looked_for_among_those_of_this_one() {
    if !has(Need::Namespaces) {
        return;
    }
    // SAFETY: the call takes no pointers, and affects only children that this thread forks from now
    // on.
    let outcome = unsafe { libc::unshare(libc::CLONE_NEWPID) };
    assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
    assert_eq!(take_from(start_peer("lend")), *b"uu");
}
