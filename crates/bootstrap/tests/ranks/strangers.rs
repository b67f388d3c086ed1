//! Strangers may send anything to the ports: it does no harm.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};
use spark_ccl_bootstrap::{Session, StreamKind, UniqueId, Via};

use crate::common::{self, TCP, in_parallel, options, soon, stream_id};

/// Sends bytes, reads until the other side closes, and returns how many bytes arrived.
fn send_and_wait_for_the_end(to: SocketAddr, bytes: &[u8]) -> usize {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(common::WATCHDOG)).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = [0; 1024];
    let mut total = 0;
    loop {
        match stream.read(&mut answer) {
            Ok(0) => return total,
            Ok(count) => total += count,
            // Closing a socket with unread bytes resets the connection.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return total,
            Err(error) => panic!("not closed: {error}"),
        }
    }
}

const GARBAGE: [&[u8]; 5] = [
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    // A frame that claims 4 GiB, one that claims 8 KiB before it is authenticated, an unknown kind,
    // and a valid kind with invalid content.
    &[0xff, 0xff, 0xff, 0xff, 1, 0, 0],
    &[0, 0x20, 0, 0, 1, 0, 0],
    &[1, 0, 0, 0, 99, 0],
    &[4, 0, 0, 0, 1, 1, 2, 3, 4],
];

fn both(sessions: Vec<Session>) {
    in_parallel(sessions, |session| {
        let wanted = stream_id(StreamKind::Control, 0);
        let via = Via::Tcp {
            source: None,
            target: None,
        };
        if session.rank() == 0 {
            session.connect(1, wanted, via, soon()).unwrap();
        } else {
            session.accept(0, wanted, soon()).unwrap();
        }
        session.seal(Ok(()), soon()).unwrap();
    });
}

fn join_two(id: UniqueId) -> Vec<Session> {
    common::join_all(id, &[0, 1], 2, &options())
        .into_iter()
        .map(Result::unwrap)
        .collect()
}

#[test]
fn garbage_is_closed_and_the_world_comes_up() {
    let id = UniqueId::create(&options()).unwrap();
    for bytes in GARBAGE {
        // At most a short rejection comes back.
        assert!(send_and_wait_for_the_end(id.addresses()[0], bytes) < 32);
    }
    let sessions = join_two(id);
    for bytes in GARBAGE {
        assert!(send_and_wait_for_the_end(sessions[1].peer(1).addresses[0].address, bytes) < 32);
    }
    both(sessions);
}

#[test]
fn silent_and_half_spoken_clients_delay_nobody() {
    let id = UniqueId::create(&options()).unwrap();
    let hold = |address: SocketAddr| -> Vec<TcpStream> {
        (0..10)
            .map(|i| {
                let mut stream = TcpStream::connect(address).unwrap();
                // Prefixes of a frame, of different lengths.
                stream
                    .write_all(&[60, 0, 0, 0, 1, b'S', b'C', b'C', b'L'][..i.min(9)])
                    .unwrap();
                stream
            })
            .collect()
    };
    let at_root = hold(id.addresses()[0]);
    let sessions = join_two(id);
    let at_rank = hold(sessions[1].peer(1).addresses[0].address);
    both(sessions);
    drop((at_root, at_rank));
}

#[test]
fn a_storm_of_strangers_does_not_keep_ranks_out() {
    let id = UniqueId::create(&options()).unwrap();
    let storm = |address: SocketAddr| -> Vec<TcpStream> {
        (0..200)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect()
    };
    let at_root = storm(id.addresses()[0]);
    let sessions = join_two(id);
    let at_rank = storm(sessions[1].peer(1).addresses[0].address);
    both(sessions);
    drop((at_root, at_rank));
}

#[test]
fn a_silent_client_is_closed_after_a_while() {
    let id = UniqueId::create(&options()).unwrap();
    assert_eq!(send_and_wait_for_the_end(id.addresses()[0], &[]), 0);
}

#[test]
fn many_ranks_at_once_all_get_in() {
    // More than a listener serves at a time.
    let size = 100;
    let id = UniqueId::create(&options()).unwrap();
    let ranks: Vec<u32> = (0..size).collect();
    let sessions = common::join_all(id, &ranks, size, &options());
    in_parallel(sessions, |session| {
        session.unwrap().seal(Ok(()), soon()).unwrap();
    });
}

/// If set, this test program is a stranger: the address that it floods.
const FLOOD: &str = "SPARK_BOOTSTRAP_TEST_FLOOD";
/// How many connections the stranger holds, where its limit of descriptors allows.
const HELD: usize = 5000;

/// A stranger in a process of its own, so that its descriptors are not ours.
struct Flood(Child);

impl Flood {
    /// Returns once it holds its connections.
    fn begin(target: SocketAddr) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "strangers::flood", "--nocapture"])
            .env(FLOOD, target.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let flood = Flood(child);
        assert!(lines.any(|line| line.unwrap() == "flooding"));
        flood
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Holds silent connections, and reopens closed ones, if a test below started this process.
#[test]
#[ignore = "another test here starts it as a child process, with --ignored --exact"]
fn flood() {
    let Ok(target) = std::env::var(FLOOD) else {
        return;
    };
    let target = target.parse::<SocketAddr>().unwrap().into();
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    let most = maximum.map_or(HELD, |most| most as usize - 50).min(HELD);
    let begin = Instant::now();
    let (mut sockets, mut is_told) = (Vec::<Socket>::new(), false);
    while begin.elapsed() < 3 * common::WATCHDOG {
        while sockets.len() < most {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.set_nonblocking(true).unwrap();
            // Connecting is under way: its outcome is seen below.
            let _ = socket.connect(&target);
            sockets.push(socket);
        }
        if !std::mem::replace(&mut is_told, true) {
            eprintln!("flooding");
        }
        let fds = sockets.iter().map(|one| PollFd::new(one, PollFlags::IN));
        let mut fds: Vec<_> = fds.collect();
        let soon = Duration::from_millis(20).try_into().unwrap();
        poll(&mut fds, Some(&soon)).unwrap();
        let closed: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut closed = closed.into_iter();
        sockets.retain(|_| closed.next() == Some(false));
    }
}

/// This took minutes before strangers were told apart from ranks, and listeners from each other.
#[test]
fn thousands_of_silent_strangers_keep_nobody_waiting() {
    let id = UniqueId::create(&options()).unwrap();
    let at_root = Flood::begin(id.addresses()[0]);
    let sessions = join_two(id);
    drop(at_root);
    let at_rank = Flood::begin(sessions[1].peer(1).addresses[0].address);
    in_parallel(sessions, |session| {
        for (number, via) in [(0, Via::Unix), (1, TCP)] {
            let (wanted, begin) = (stream_id(StreamKind::Control, number), Instant::now());
            if session.rank() == 0 {
                session.connect(1, wanted, via, soon()).unwrap();
            } else {
                session.accept(0, wanted, soon()).unwrap();
            }
            eprintln!("{via:?} after {:?}", begin.elapsed());
        }
        let never = session.accept(
            1 - session.rank(),
            stream_id(StreamKind::Control, 7),
            Instant::now(),
        );
        let names_strangers = never
            .unwrap_err()
            .to_string()
            .contains("never authenticated");
        assert_eq!(names_strangers, session.rank() == 1);
        session.seal(Ok(()), soon()).unwrap();
    });
    drop(at_rank);
}
