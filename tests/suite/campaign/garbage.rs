//! Strangers that find the ports of a job, and write random bytes to them, or hold silent
//! connections.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, connect,
    recv, socket_with,
};
use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::case::Dice;
use crate::processes::WATCHDOG;

/// Streams that a stranger keeps open after writing.
const HELD: usize = 8;
const PAUSE: Duration = Duration::from_millis(10);

/// Silent connections that a stranger holds to each port.
const SILENT: usize = 100;

/// How often strangers wrote, and how many silent connections they opened. Relaxed: counts.
pub(super) static WRITTEN: AtomicU32 = AtomicU32::new(0);
pub(super) static OPENED: AtomicU32 = AtomicU32::new(0);

/// What strangers do with their connections.
#[derive(Clone, Copy)]
pub(super) enum Manner {
    Talks,
    IsSilent,
}

/// A stranger for each process. Dropping this ends them.
pub(super) struct Storm {
    is_over: Arc<AtomicBool>,
    strangers: Vec<JoinHandle<()>>,
    /// The count of meetings at its start.
    before: u32,
}

impl Storm {
    pub(super) fn start(pids: &[u32], seed: u32, manner: Manner) -> Self {
        allow_many_descriptors();
        let (before, is_over) = (meetings(), Arc::new(AtomicBool::new(false)));
        let (ready, are_ready) = channel();
        let start = |&pid: &u32| {
            let (is_over, ready) = (Arc::clone(&is_over), ready.clone());
            std::thread::spawn(move || {
                enter_network_of(pid);
                match manner {
                    Manner::Talks => pester(pid, seed, &is_over),
                    Manner::IsSilent => keep_silent(pid, &is_over, &ready),
                }
            })
        };
        let strangers = pids.iter().map(start).collect();
        if matches!(manner, Manner::IsSilent) {
            // Waits until each is connected to all ports that exist by now.
            for _ in pids {
                are_ready.recv_timeout(WATCHDOG).unwrap();
            }
        }
        Self {
            is_over,
            strangers,
            before,
        }
    }

    /// Waits until a stranger has found a port. There must be one.
    pub(super) fn until_met(&self) {
        let deadline = Instant::now() + WATCHDOG;
        while meetings() == self.before {
            assert!(Instant::now() < deadline, "no stranger finds a port");
            std::thread::sleep(PAUSE);
        }
    }
}

fn meetings() -> u32 {
    WRITTEN.load(Ordering::Relaxed) + OPENED.load(Ordering::Relaxed)
}

impl Drop for Storm {
    fn drop(&mut self) {
        // Relaxed: the flag publishes nothing else.
        self.is_over.store(true, Ordering::Relaxed);
        for stranger in self.strangers.drain(..) {
            // A stranger that panicked has printed why.
            let _ = stranger.join();
        }
    }
}

fn pester(pid: u32, seed: u32, is_over: &AtomicBool) {
    let dice = &mut Dice {
        seed,
        thrown: 1 << 32,
    };
    let mut held = VecDeque::new();
    while !is_over.load(Ordering::Relaxed) {
        for port in ports(pid) {
            // A port that refuses strangers does well.
            let Ok(mut stream) = port.connect() else {
                continue;
            };
            let length = dice.one_of(&[1, 3, 40, 500, 70_000]);
            let words: Vec<u8> = (0..length).map(|_| dice.below(256) as u8).collect();
            let _ = stream.write_all(&words);
            WRITTEN.fetch_add(1, Ordering::Relaxed);
            if dice.below(2) == 0 {
                held.push_back(stream);
            }
            if held.len() > HELD {
                held.pop_front();
            }
        }
        std::thread::sleep(PAUSE);
    }
}

/// Holds connections to each port, and reopens each that the process closes.
fn keep_silent(pid: u32, is_over: &AtomicBool, ready: &Sender<()>) {
    let mut held: BTreeMap<String, Vec<File>> = BTreeMap::new();
    while !is_over.load(Ordering::Relaxed) {
        for port in ports(pid) {
            let streams = held.entry(format!("{port:?}")).or_default();
            streams.retain(is_open);
            while streams.len() < SILENT && !is_over.load(Ordering::Relaxed) {
                // A port that refuses strangers does well.
                let Ok(stream) = port.connect_later() else {
                    break;
                };
                OPENED.fetch_add(1, Ordering::Relaxed);
                streams.push(stream);
            }
        }
        // Fails once nobody waits for it.
        let _ = ready.send(());
        std::thread::sleep(PAUSE);
    }
}

/// Whether the other end is still open.
fn is_open(stream: &File) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let mut byte = [0_u8; 1];
    recv(stream, &mut byte, flags)
        .map_or_else(|error| error == Errno::AGAIN, |(_, received)| received > 0)
}

fn allow_many_descriptors() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
}

/// Moves this thread into the process's network.
fn enter_network_of(pid: u32) {
    let path = |of: &str| format!("/proc/{of}/ns/net");
    let link = |of: &str| std::fs::read_link(path(of)).unwrap();
    if link(&pid.to_string()) != link("thread-self") {
        let network = File::open(path(&pid.to_string())).unwrap();
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }
}

#[derive(Debug)]
enum Port {
    Tcp(SocketAddr),
    Unix(String),
}

impl Port {
    /// A connection that may still be under way: nobody waits for it.
    fn connect_later(&self) -> rustix::io::Result<File> {
        let (family, address): (AddressFamily, SocketAddrAny) = match self {
            Self::Tcp(SocketAddr::V4(address)) => (AddressFamily::INET, (*address).into()),
            Self::Tcp(SocketAddr::V6(address)) => (AddressFamily::INET6, (*address).into()),
            Self::Unix(name) => {
                let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
                (AddressFamily::UNIX, address.into())
            }
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let stream = socket_with(family, SocketType::STREAM, flags, None)?;
        match connect(&stream, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(stream.into()),
            Err(error) => Err(error),
        }
    }

    /// A connection for writing, with a short timeout.
    fn connect(&self) -> std::io::Result<File> {
        let stream: OwnedFd = match self {
            Self::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, Duration::from_secs(1))?;
                stream.set_write_timeout(Some(PAUSE))?;
                stream.into()
            }
            Self::Unix(name) => {
                let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
                let stream = UnixStream::connect_addr(&address)?;
                stream.set_write_timeout(Some(PAUSE))?;
                stream.into()
            }
        };
        Ok(stream.into())
    }
}

/// The ports at which the process listens.
fn ports(pid: u32) -> Vec<Port> {
    let sockets: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|fd| Some(std::fs::read_link(fd.path()).ok()?.to_str()?.to_owned()))
        .collect();
    let is_own = |inode: &&str| sockets.contains(&format!("socket:[{inode}]"));
    let rows = |table: &str| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/net/{table}"));
        let text = text.unwrap_or_default();
        let row = |line: &str| line.split_whitespace().map(str::to_owned).collect();
        text.lines().skip(1).map(row).collect::<Vec<Vec<String>>>()
    };
    let tcp = [rows("tcp"), rows("tcp6")].concat();
    let listens = |row: &&Vec<String>| row[3] == "0A" && is_own(&row[9].as_str());
    let tcp = tcp
        .iter()
        .filter(listens)
        .map(|row| Port::Tcp(address(&row[1])));
    let unix = rows("unix").into_iter().filter_map(|row| {
        let name = row.get(7)?.strip_prefix('@')?.to_owned();
        let listens = row[3] == "00010000" && is_own(&row[6].as_str());
        listens.then_some(Port::Unix(name))
    });
    tcp.chain(unix).collect()
}

/// Parses an address of the kernel's table: its words, in this machine's byte order, and the port.
fn address(text: &str) -> SocketAddr {
    let (words, port) = text.split_once(':').unwrap();
    let bytes: Vec<u8> = (0..words.len())
        .step_by(8)
        .flat_map(|at| {
            u32::from_str_radix(&words[at..at + 8], 16)
                .unwrap()
                .to_ne_bytes()
        })
        .collect();
    let ip = match <[u8; 16]>::try_from(bytes.as_slice()) {
        Ok(all) => IpAddr::from(Ipv6Addr::from(all)),
        Err(_) => IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).unwrap())),
    };
    // A listener at any address also listens at loopback.
    let ip = match ip {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, u16::from_str_radix(port, 16).unwrap())
}
