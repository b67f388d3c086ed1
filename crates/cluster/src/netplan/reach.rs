//! Whether a planned interface works: its address and MTU, and its neighbours.

use std::io;
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::time::Duration;

use super::cables::hardware;
use super::plan::{Interface, Peer};
use crate::at_once::at_once;

/// The time limit of one attempt to reach a neighbour.
const ATTEMPT: Duration = Duration::from_secs(1);
/// The number of attempts, since packets may get lost. A host sends at most six refusals in a row.
const ATTEMPTS: usize = 4;
/// A port of UDP that nobody listens to.
const NOBODY: u16 = 9;
/// The bytes of the headers of IPv4 and UDP, and those of a packet that passes everywhere.
const HEADERS: u16 = 28;
const SMALLEST: u16 = 128;

/// Problems of interfaces, each in words.
pub(super) fn problems(interfaces: &[Interface]) -> Vec<String> {
    let wrong = interfaces.iter().filter_map(unset);
    let set = interfaces.iter().filter(|one| unset(one).is_none());
    wrong.chain(of_all(set, unreached)).collect()
}

/// The neighbours that packets of the full MTU do not reach, in words. This is asked once: hosts
/// limit how often they refuse.
pub(super) fn narrow(interfaces: &[Interface]) -> Vec<String> {
    of_all(interfaces.iter(), narrow_to)
}

/// Problems of the neighbours of interfaces, each in words. A host that drops questions takes its
/// time, and a node has up to 36 neighbours: all are asked at once.
fn of_all<'a>(
    interfaces: impl Iterator<Item = &'a Interface>,
    ask: fn(&Interface, &Peer) -> Option<String>,
) -> Vec<String> {
    let all = interfaces.flat_map(|one| one.peers.iter().map(move |peer| (one, peer)));
    let answers = at_once(all, |(one, peer)| ask(one, peer)).into_iter();
    let defect = |_| Some("a thread panicked: a defect of spark-perf, please report it".to_owned());
    answers
        .filter_map(|one| one.unwrap_or_else(defect))
        .collect()
}

/// The reason why an interface is not set as planned, if it is not.
fn unset(planned: &Interface) -> Option<String> {
    let (name, address, mtu) = (&planned.name, planned.address, planned.mtu);
    let addresses = spark_ccl_transport::netif::list().unwrap_or_default();
    let mut own = addresses.iter().filter(|one| one.name == *name);
    if !own.any(|one| one.addr == address) {
        return Some(format!("{name} has no address {address}, or no cable"));
    }
    let own = std::fs::read_to_string(format!("/sys/class/net/{name}/mtu")).unwrap_or_default();
    let (own, remedy) = (own.trim(), format!("sudo ip link set {name} mtu {mtu}"));
    let why =
        || format!("{name} has MTU {own}, not {mtu}: does its driver take that? try: {remedy}");
    (own != mtu.to_string()).then(why)
}

/// The reason why a neighbour is not reached, if it is not. A refusal is an answer.
fn unreached(own: &Interface, peer: &Peer) -> Option<String> {
    let (name, address) = (&own.name, peer.address);
    let error = TcpStream::connect_timeout(&(address, 22).into(), ATTEMPT).err()?;
    if error.kind() == io::ErrorKind::ConnectionRefused {
        return None;
    }
    Some(match hardware(name, address) {
        Some(_) => format!(
            "{name}: the cable reaches {peer}, but its TCP port 22 does not answer: does a \
             firewall drop that?"
        ),
        None => format!("{name} does not reach {peer}: is the cable between these two?"),
    })
}

/// If even small packets are not answered, nothing can be concluded, and nothing is reported.
fn narrow_to(own: &Interface, peer: &Peer) -> Option<String> {
    let (name, mtu) = (&own.name, own.mtu);
    let arrives = |bytes| (0..ATTEMPTS).any(|_| is_refused(own.address, peer.address, bytes));
    (arrives(SMALLEST) && !arrives(mtu)).then(|| {
        format!(
            "{name}: packets of {mtu} bytes do not reach {peer}, small ones do: does a switch \
             between have a smaller MTU? --mtu sets another"
        )
    })
}

/// Whether a host refuses a packet of this size, with all headers, that may not be fragmented: so
/// it has arrived.
fn is_refused(own: Ipv4Addr, address: Ipv4Addr, bytes: u16) -> bool {
    let answer = || {
        let socket = UdpSocket::bind((own, 0))?;
        socket.connect((address, NOBODY))?;
        socket.set_read_timeout(Some(ATTEMPT / 2))?;
        // Linux sets the don't-fragment flag on packets that fit its own MTU.
        socket.send(&vec![0; usize::from(bytes - HEADERS)])?;
        socket.recv(&mut [0])
    };
    answer().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}
