//! Hosts that answer an echo request to all nodes of a link.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};
use spark_ccl_transport::netif;

use super::found::{Found, MOST, scoped};
use super::is_pause;
use super::neighbour_table::NeighbourTable;

/// All nodes of a link.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// Types of messages.
const ECHO_REQUEST: u8 = 128;
const ECHO_REPLY: u8 = 129;
/// The pause between requests: a request, or its answer, may be lost.
const AGAIN: Duration = Duration::from_millis(700);

/// The hosts that answer within this time.
pub(super) fn ask(time: Duration) -> Result<Vec<Found>, String> {
    let all = netif::list().map_err(|error| error.to_string())?;
    let links = all.iter().filter(|one| !one.loopback && one.addr.is_ipv6());
    let links: BTreeMap<u32, &str> = links.map(|one| (one.index, one.name.as_str())).collect();
    if links.is_empty() {
        return Err("no interface that is up has an IPv6 address".to_owned());
    }
    let socket = open().map_err(|error| {
        format!("{error}; it takes root, or: sudo sysctl net.ipv4.ping_group_range='0 2147483647'")
    })?;
    let own: BTreeSet<IpAddr> = all.iter().map(|one| one.addr).collect();
    let answers = collect(&socket, &links, time).map_err(|error| error.to_string())?;
    let foreign = answers
        .into_iter()
        .filter(|from| !own.contains(&IpAddr::V6(*from.ip())));
    let table = NeighbourTable::read();
    let sighting = |from: SocketAddrV6| {
        let link = links.get(&from.scope_id()).copied().unwrap_or_default();
        let mut addresses = table.ipv4_of(IpAddr::V6(*from.ip()), link);
        addresses.insert(text(from, &links));
        Found::seen(None, addresses, "neighbours")
    };
    Ok(foreign.map(sighting).collect())
}

/// A socket that takes echo requests from anyone, where the system allows that, or else from root.
fn open() -> io::Result<UdpSocket> {
    let of = |kind| Socket::new(Domain::IPV6, kind, Some(Protocol::ICMPV6));
    Ok(of(Type::DGRAM).or_else(|_| of(Type::RAW))?.into())
}

/// Asks on all links, again and again, and collects who answers.
fn collect(
    socket: &UdpSocket,
    links: &BTreeMap<u32, &str>,
    time: Duration,
) -> io::Result<BTreeSet<SocketAddrV6>> {
    // Without a checksum, which the kernel computes.
    let request = [ECHO_REQUEST, 0, 0, 0, 0x5c, 0xc1, 0, 1];
    let (deadline, mut next) = (Instant::now() + time, Instant::now());
    let mut answers = BTreeSet::new();
    let mut buffer = [0; 256];
    while Instant::now() < deadline {
        if Instant::now() >= next {
            for &index in links.keys() {
                let all = SocketAddrV6::new(ALL_NODES, 0, 0, index);
                // An interface may have gone down; the others still count.
                let _ = socket.send_to(&request, all);
            }
            next = Instant::now() + AGAIN;
        }
        let wait = next.min(deadline).saturating_duration_since(Instant::now());
        socket.set_read_timeout(Some(wait.max(Duration::from_millis(1))))?;
        match socket.recv_from(&mut buffer) {
            Ok((1.., SocketAddr::V6(from))) if buffer[0] == ECHO_REPLY && answers.len() < MOST => {
                answers.insert(SocketAddrV6::new(*from.ip(), 0, 0, from.scope_id()));
            }
            // Someone else's messages, a crowd, and the end of the wait.
            Ok(_) => {}
            Err(error) if is_pause(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(answers)
}

fn text(from: SocketAddrV6, links: &BTreeMap<u32, &str>) -> String {
    match links.get(&from.scope_id()) {
        Some(link) if from.ip().is_unicast_link_local() => scoped(*from.ip(), link),
        _ => from.ip().to_string(),
    }
}
