//! Whether a planned interface works: its address and MTU, and its neighbours.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use super::cables::hardware;
use super::plan::{Interface, Peer};

/// How long one attempt to reach a neighbour may take.
const ATTEMPT: Duration = Duration::from_secs(1);
/// How often a packet is sent that may get lost: hosts refuse six in a row.
const ATTEMPTS: usize = 4;
/// A port of UDP that nobody listens to.
const NOBODY: u16 = 9;
/// The bytes of the headers of IPv4 and UDP, and those of a packet that passes everywhere.
const HEADERS: u16 = 28;
const SMALLEST: u16 = 128;

/// What is wrong with interfaces, each in words.
pub(super) fn problems(interfaces: &[Interface]) -> Vec<String> {
    let found = at_once(interfaces.iter(), problems_of);
    found.into_iter().flatten().collect()
}

fn problems_of(interface: &Interface) -> Vec<String> {
    let Interface {
        name, address, mtu, ..
    } = interface;
    let addresses = spark_ccl_transport::netif::list().unwrap_or_default();
    if !addresses
        .iter()
        .any(|one| one.name == *name && one.addr == *address)
    {
        return vec![format!("{name} has no address {address}, or no cable")];
    }
    let read = fs::read_to_string(format!("/sys/class/net/{name}/mtu")).unwrap_or_default();
    if read.trim() != mtu.to_string() {
        let own = read.trim();
        return vec![format!(
            "{name} has MTU {own}, not {mtu}: does its driver take that? try: sudo ip link set \
             {name} mtu {mtu}"
        )];
    }
    let found = at_once(interface.peers.iter(), |peer| unreached(name, peer));
    found.into_iter().flatten().collect()
}

/// The first neighbour that packets of the full MTU do not reach, in words. This is asked once:
/// hosts limit how often they refuse.
pub(super) fn narrow(interfaces: &[Interface]) -> Option<String> {
    let all = interfaces
        .iter()
        .flat_map(|one| one.peers.iter().map(move |peer| (one, peer)));
    let found = at_once(all, |(interface, peer)| narrow_to(interface, peer));
    found.into_iter().flatten().next()
}

/// Asks about all at once: what drops questions takes its time, and a node has up to 36 neighbours.
/// The answers come in order.
fn at_once<T: Send, A: Send>(all: impl Iterator<Item = T>, ask: impl Fn(T) -> A + Sync) -> Vec<A> {
    let ask = &ask;
    std::thread::scope(|scope| {
        let threads: Vec<_> = all.map(|one| scope.spawn(move || ask(one))).collect();
        let answers = threads.into_iter().map(|thread| {
            let answer = thread.join();
            answer.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        answers.collect()
    })
}

/// Why a neighbour is not reached, if so.
fn unreached(name: &str, peer: &Peer) -> Option<String> {
    let Peer {
        node,
        interface,
        address,
    } = peer;
    if answers((*address, 22).into()) {
        return None;
    }
    let far = format!("{node} ({interface}, {address})");
    Some(if hardware(name, *address).is_some() {
        format!(
            "{name}: the cable reaches {far}, but its TCP port 22 does not answer: does a firewall \
             drop that?"
        )
    } else {
        format!("{name} does not reach {far}: is the cable between these two?")
    })
}

/// If even small packets are not answered, nothing can be concluded, and nothing is reported.
fn narrow_to(interface: &Interface, peer: &Peer) -> Option<String> {
    let Interface { name, mtu, .. } = interface;
    let arrives = |bytes: u16| {
        (0..ATTEMPTS).any(|_| refused(interface.address, peer.address, bytes).unwrap_or(false))
    };
    let narrow = arrives(SMALLEST) && !arrives(*mtu);
    narrow.then(|| {
        let (node, far) = (&peer.node, &peer.interface);
        format!(
            "{name}: packets of {mtu} bytes do not reach {node} ({far}, {}), small ones do: does a \
             switch between have a smaller MTU? --mtu sets another",
            peer.address
        )
    })
}

/// Whether a host refuses a packet of this size, with all headers, that may not be fragmented: so
/// it has arrived.
fn refused(own: Ipv4Addr, address: Ipv4Addr, bytes: u16) -> io::Result<bool> {
    let socket = UdpSocket::bind((own, 0))?;
    socket.connect((address, NOBODY))?;
    socket.set_read_timeout(Some(ATTEMPT / 2))?;
    // Linux sets the don't-fragment flag on packets that fit its own MTU.
    socket.send(&vec![0; usize::from(bytes - HEADERS)])?;
    let answer = socket.recv(&mut [0]);
    Ok(answer.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused))
}

/// Whether a host answers, be it with a refusal.
fn answers(address: SocketAddr) -> bool {
    match TcpStream::connect_timeout(&address, ATTEMPT) {
        Ok(_) => true,
        Err(error) => error.kind() == io::ErrorKind::ConnectionRefused,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn one_that_does_not_answer_keeps_no_other_waiting() {
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            // Each answers once all are asked.
            let barrier = Barrier::new(36);
            let ask = |one: usize| {
                barrier.wait();
                one
            };
            sender.send(at_once(0..36, ask))
        });
        let answers = receiver.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(answers, (0..36).collect::<Vec<_>>());
    }
}
