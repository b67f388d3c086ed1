//! The kernel's list of TCP sockets, for kernels without `sock_diag`.

use std::fmt::Write;
use std::io;
use std::net::{IpAddr, SocketAddr};

use super::Found;

/// The state of a connected socket.
const ESTABLISHED: &str = "01";

/// The socket at `local` whose other end is at `remote`.
pub(super) fn find(local: SocketAddr, remote: SocketAddr) -> io::Result<Option<Found>> {
    let mapped = |address: SocketAddr| match address.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        IpAddr::V6(_) => address,
    };
    let plain = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    // An IPv6 socket may have IPv4 addresses.
    let lists: [(_, &dyn Fn(SocketAddr) -> SocketAddr); 2] = [("tcp", &plain), ("tcp6", &mapped)];
    let mut error = None;
    for (name, form) in lists {
        let wanted = [local, remote].map(|address| text(form(address)));
        match std::fs::read_to_string(format!("/proc/thread-self/net/{name}")) {
            Ok(list) => {
                if let Some(found) = list.lines().find_map(|line| row(line, &wanted)) {
                    return Ok(Some(found));
                }
            }
            Err(problem) => error = Some(problem),
        }
    }
    error.map_or(Ok(None), Err)
}

/// Parses a row of the list; `None` unless its socket has these addresses.
fn row(line: &str, wanted: &[String; 2]) -> Option<Found> {
    let mut words = line.split_whitespace().skip(1);
    let is_wanted = words.next()? == wanted[0] && words.next()? == wanted[1];
    let is_connected = words.next()? == ESTABLISHED;
    // Before the user: two fields of queues and timers, and one of retransmissions; after it, one
    // of probes.
    let user = words.nth(3)?.parse().ok()?;
    let inode = words.nth(1)?.parse().ok()?;
    is_wanted.then_some(Found {
        is_connected,
        user,
        inode,
    })
}

/// An address as in the list: words of four bytes in this machine's byte order.
fn text(address: SocketAddr) -> String {
    let bytes = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let mut text = String::new();
    for word in bytes.as_chunks().0 {
        let _ = write!(text, "{:08X}", u32::from_ne_bytes(*word));
    }
    let _ = write!(text, ":{:04X}", address.port());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn rows_are_read() {
        // Printed by Linux 6.18.
        let line = "   1: 0100007F:9C40 0100007F:C350 01 00000000:00000000 00:00000000 \
                           00000000  1000 \
                           0 4711 1 0000000000000000 20 0 0 10 -1";
        let addresses = ["127.0.0.1:40000", "127.0.0.1:50000"];
        let wanted = addresses.map(|one| text(one.parse().unwrap()));
        let found = Found {
            is_connected: true,
            user: 1000,
            inode: 4711,
        };
        assert_eq!(row(line, &wanted), Some(found));
        let waiting = row(&line.replace(" 01 ", " 06 "), &wanted).unwrap();
        assert!(!waiting.is_connected);
        let [local, remote] = wanted;
        assert_eq!(row(line, &[remote, local]), None);
        let mapped = text("[::ffff:127.0.0.1]:1".parse().unwrap());
        assert_eq!(mapped, "0000000000000000FFFF00000100007F:0001");
    }
}
