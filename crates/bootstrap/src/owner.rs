//! The user at the other end of a connection within this host. Without a secret, it must be this
//! process's own: anybody on the host can connect to loopback, and knows the public key.
//!
//! Ids are those of this process's user namespace. The kernel shows users without an id there by
//! the overflow id, which therefore proves nothing, even if it is this process's own.

mod sock_diag;
mod sockets;

use std::io;
use std::net::SocketAddr;

use socket2::Socket;
use spark_ccl_fork::peer_user;

/// A TCP socket of this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Found {
    is_connected: bool,
    user: u32,
    /// 0 while no process holds it: not accepted yet, or closed.
    inode: u64,
}

/// Why the other end does not count as this process's user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotOwn {
    #[error("it belongs to user id {theirs}, and this process to user id {ours}")]
    Other { ours: u32, theirs: u32 },
    #[error("its user is not known ({0})")]
    Unknown(String),
}

/// Checks that the other end of a connection belongs to this process's user. The other end must
/// have accepted it.
pub(crate) fn check(socket: &Socket) -> Result<(), NotOwn> {
    let theirs = user_of_peer(socket).map_err(|error| NotOwn::Unknown(error.to_string()))?;
    let namespace = Namespace::of_this_process();
    judge(rustix::process::geteuid().as_raw(), theirs, &namespace)
}

fn judge(ours: u32, theirs: u32, namespace: &Namespace) -> Result<(), NotOwn> {
    if theirs == namespace.overflow && !namespace.has_all {
        let why = "it has no id in the user namespace of this process".to_owned();
        return Err(NotOwn::Unknown(why));
    }
    if theirs == ours {
        Ok(())
    } else {
        Err(NotOwn::Other { ours, theirs })
    }
}

/// How this process's namespace shows users.
struct Namespace {
    /// The id that stands for all users without one here.
    overflow: u32,
    /// Whether every user has an id, as outside containers.
    has_all: bool,
}

impl Namespace {
    fn of_this_process() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let overflow = read("/proc/sys/kernel/overflowuid").trim().parse();
        Namespace {
            overflow: overflow.unwrap_or(65534),
            has_all: maps_all(&read("/proc/self/uid_map")),
        }
    }
}

/// Whether a map covers all users. Each of its lines has a first id inside, one outside, and a
/// count.
fn maps_all(map: &str) -> bool {
    let count = |line: &str| line.split_whitespace().nth(2)?.parse::<u64>().ok();
    map.lines().filter_map(count).sum::<u64>() >= u64::from(u32::MAX)
}

fn user_of_peer(socket: &Socket) -> io::Result<u32> {
    let unnamed = || io::Error::other("its socket has no address");
    let near = socket.local_addr()?;
    if near.is_unix() {
        return peer_user(socket).ok_or_else(|| io::Error::other("the kernel does not say"));
    }
    let near = near.as_socket().ok_or_else(unnamed)?;
    let far = socket.peer_addr()?.as_socket().ok_or_else(unnamed)?;
    let found = find(far, near)?.filter(|found| found.is_connected && found.inode != 0);
    let gone = || io::Error::other("no process of this network namespace has the other end");
    found.map(|found| found.user).ok_or_else(gone)
}

/// The socket at `local` whose other end is at `remote`.
fn find(local: SocketAddr, remote: SocketAddr) -> io::Result<Option<Found>> {
    match sock_diag::find(local, remote) {
        Ok(Some(found)) => Ok(Some(found)),
        // A kernel without answers says the same; one with answers knows this process's own end.
        _ if matches!(sock_diag::find(remote, local), Ok(Some(_))) => Ok(None),
        _ => sockets::find(local, remote),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net;

    fn own() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    #[test]
    fn both_ends_of_a_connection_are_found_in_either_way() {
        let (near, far) = net::tcp_pair().unwrap();
        let [a, b] = [&near, &far].map(|end| end.local_addr().unwrap().as_socket().unwrap());
        for (local, remote) in [(a, b), (b, a)] {
            let listed = sockets::find(local, remote).unwrap().unwrap();
            assert_eq!(listed.user, own());
            assert_ne!(listed.inode, 0);
            assert_eq!(find(local, remote).unwrap(), Some(listed));
        }
        check(&near).unwrap();
        check(&far).unwrap();
        drop(far);
        assert!(matches!(check(&near), Err(NotOwn::Unknown(_))));
    }

    #[test]
    fn an_end_that_nobody_has_accepted_proves_nothing() {
        let listener = net::listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let target = listener.local_addr().unwrap().as_socket().unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let near = net::connect_tcp(None, target, deadline).unwrap();
        assert!(matches!(check(&near), Err(NotOwn::Unknown(_))));
        let (far, _) = listener.accept().unwrap();
        check(&near).unwrap();
        check(&far).unwrap();
    }

    /// As for a rendezvous on all addresses, whose listener is an IPv6 one.
    #[test]
    fn a_connection_of_both_families_is_found() {
        let Ok(listener) = net::listen_tcp("[::]:0".parse().unwrap()) else {
            return;
        };
        let port = listener.local_addr().unwrap().as_socket().unwrap().port();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let target = SocketAddr::from(([127, 0, 0, 1], port));
        let near = net::connect_tcp(None, target, deadline).unwrap();
        let (far, _) = listener.accept().unwrap();
        check(&near).unwrap();
        check(&far).unwrap();
        let [a, b] = [&near, &far].map(|end| end.local_addr().unwrap().as_socket().unwrap());
        assert_eq!(sockets::find(a, b).unwrap().unwrap().user, own());
        assert_eq!(sockets::find(b, a).unwrap().unwrap().user, own());
    }

    #[test]
    fn users_of_unix_sockets_are_known() {
        let pair = Socket::pair(socket2::Domain::UNIX, socket2::Type::STREAM, None);
        check(&pair.unwrap().0).unwrap();
    }

    #[test]
    fn users_without_an_id_here_are_not_taken_for_this_one() {
        let host = Namespace {
            overflow: 65534,
            has_all: true,
        };
        let container = Namespace {
            has_all: false,
            ..host
        };
        let other = |ours, theirs| Err(NotOwn::Other { ours, theirs });
        assert_eq!(judge(7, 7, &host), Ok(()));
        assert_eq!(judge(7, 0, &host), other(7, 0));
        assert_eq!(judge(65534, 65534, &host), Ok(()));
        assert_eq!(judge(0, 0, &container), Ok(()));
        assert_eq!(judge(0, 7, &container), other(0, 7));
        for ours in [0, 65534] {
            assert!(matches!(
                judge(ours, 65534, &container),
                Err(NotOwn::Unknown(_))
            ));
        }
        assert!(maps_all("         0          0 4294967295\n"));
        assert!(!maps_all(
            "         0       1000          1\n         1     100000      65536\n"
        ));
        assert!(!maps_all(""));
    }
}
