//! Whether a planned interface works: its address and MTU, and its neighbours.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::cables::hardware;
use super::plan::{Interface, Peer};

/// How long one attempt to reach a neighbour may take.
const ATTEMPT: Duration = Duration::from_secs(1);

/// What is wrong with an interface, each in words.
pub(super) fn problems(interface: &Interface) -> Vec<String> {
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
        return vec![format!("{name} has MTU {}, not {mtu}", read.trim())];
    }
    let peers = interface.peers.iter();
    peers.filter_map(|peer| unreached(name, peer)).collect()
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
            "{name}: the cable reaches {far}, but its TCP port 22 does not answer: does a firewall drop that?"
        )
    } else {
        format!("{name} does not reach {far}: is the cable between these two?")
    })
}

/// Whether a host answers, be it with a refusal.
fn answers(address: SocketAddr) -> bool {
    match TcpStream::connect_timeout(&address, ATTEMPT) {
        Ok(_) => true,
        Err(error) => error.kind() == io::ErrorKind::ConnectionRefused,
    }
}
