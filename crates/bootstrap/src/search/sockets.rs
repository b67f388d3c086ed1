//! Sends datagrams to all hosts of a network, and receives theirs. Nothing here blocks.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};

use rustix::event::{PollFd, PollFlags};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use spark_ccl_fork::Unshared;

use super::SearchKey;
use super::datagram::{Datagram, LENGTH, What};
use crate::address::{Address, needs_scope};

/// All hosts of a network are members of these groups without joining.
const ALL_V4: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
const ALL_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// The number of datagrams that are read before other work gets its turn.
const TURN: usize = 64;

/// A socket for each available address family.
pub(super) struct Sockets {
    port: u16,
    own: Vec<Address>,
    v4: Option<Unshared<UdpSocket>>,
    v6: Option<Unshared<UdpSocket>>,
}

impl Sockets {
    pub(super) fn open(port: u16, own: &[Address]) -> Self {
        let own = own.iter().filter(|own| !own.ip.is_loopback());
        let own: Vec<Address> = own.copied().collect();
        let has = |is_wanted: fn(&IpAddr) -> bool| own.iter().any(|own| is_wanted(&own.ip));
        let open = |any: IpAddr| match bound(SocketAddr::new(any, port)) {
            Ok(socket) => Some(Unshared::new(socket)),
            Err(error) => {
                spark_ccl_log::info!("no datagrams at port {port} of {any}: {error}");
                None
            }
        };
        let v4 = has(IpAddr::is_ipv4).then(|| open(Ipv4Addr::UNSPECIFIED.into()));
        let v6 = has(IpAddr::is_ipv6).then(|| open(Ipv6Addr::UNSPECIFIED.into()));
        Self {
            port,
            own,
            v4: v4.flatten(),
            v6: v6.flatten(),
        }
    }

    /// Sends a datagram to all hosts of each network; `note` makes it for the own address there.
    /// Failures are harmless: questions are repeated.
    pub(super) fn tell_all(&self, note: impl Fn(Address) -> Option<Vec<u8>>) {
        for own in &self.own {
            let Some(bytes) = note(*own) else { continue };
            let sent = match (own.ip, &self.v4, &self.v6) {
                (IpAddr::V4(ip), Some(socket), _) => SockRef::from(&**socket)
                    .set_multicast_if_v4(&ip)
                    .and_then(|()| socket.send_to(&bytes, (ALL_V4, self.port))),
                (ip, _, Some(socket)) if needs_scope(ip) => {
                    let all = SocketAddrV6::new(ALL_V6, self.port, 0, own.interface);
                    socket.send_to(&bytes, all)
                }
                _ => continue,
            };
            if let Err(error) = sent {
                spark_ccl_log::debug!("no datagram from {}: {error}", own.ip);
            }
        }
    }

    /// The messages of ranks of this world, and their senders.
    pub(super) fn hear(&self, datagram_key: &SearchKey) -> Vec<(SocketAddr, What)> {
        let mut heard = Vec::new();
        // One byte more, to detect a longer datagram.
        let mut bytes = [0; LENGTH + 1];
        for socket in [&self.v4, &self.v6].into_iter().flatten() {
            for _ in 0..TURN {
                let Ok((count, from)) = socket.recv_from(&mut bytes) else {
                    break;
                };
                let what = Datagram::decode(&bytes[..count], datagram_key);
                heard.extend(what.map(|what| (from, what)));
            }
        }
        heard
    }

    pub(super) fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        let sockets = [&self.v4, &self.v6].into_iter().flatten();
        fds.extend(sockets.map(|socket| PollFd::new(&**socket, PollFlags::IN)));
    }
}

fn bound(address: SocketAddr) -> io::Result<UdpSocket> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    // Ranks of a host share the port: each receives what is sent to all.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}
