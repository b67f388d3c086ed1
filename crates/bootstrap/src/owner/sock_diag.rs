//! Asks the kernel about one TCP socket (`sock_diag(7)`). That takes no longer if there are many.

use std::io;
use std::net::{IpAddr, SocketAddr};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

use super::Found;

/// `SOCK_DIAG_BY_FAMILY`, as a request and as an answer.
const BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
/// `NLMSG_ERROR`.
const ERROR: u16 = 2;
/// `IPPROTO_TCP`.
const TCP: u8 = 6;
/// `TCP_ESTABLISHED`.
const ESTABLISHED: u8 = 1;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// The length of a `nlmsghdr`, at the beginning of each message.
const HEADER: usize = 16;

/// The socket at `local` whose other end is at `remote`.
pub(super) fn find(local: SocketAddr, remote: SocketAddr) -> io::Result<Option<Found>> {
    let protocol = Some(netlink::SOCK_DIAG);
    let flags = SocketFlags::CLOEXEC;
    let kernel = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
    send(&kernel, &question(local, remote), SendFlags::empty())?;
    // The kernel has answered by the time that sending returns.
    let mut answer = [0; 1024];
    let (len, _) = recv(&kernel, &mut answer, RecvFlags::DONTWAIT)?;
    read(answer.get(..len).unwrap_or_default())
}

/// The request: a `nlmsghdr` and an `inet_diag_req_v2`.
fn question(local: SocketAddr, remote: SocketAddr) -> Vec<u8> {
    let (local_ip, remote_ip) = (local.ip().to_canonical(), remote.ip().to_canonical());
    let family = if local_ip.is_ipv4() {
        AF_INET
    } else {
        AF_INET6
    };
    let mut body = vec![family, TCP, 0, 0];
    // Any state.
    body.extend(u32::MAX.to_ne_bytes());
    body.extend(local.port().to_be_bytes());
    body.extend(remote.port().to_be_bytes());
    body.extend(address(local_ip));
    body.extend(address(remote_ip));
    // Any interface, any cookie.
    body.extend([0; 4]);
    body.extend([u8::MAX; 8]);
    let mut message = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
    message.extend(BY_FAMILY.to_ne_bytes());
    message.extend(REQUEST.to_ne_bytes());
    // A sequence number, and the sender, which the kernel fills in.
    message.extend([0; 8]);
    message.extend(body);
    message
}

fn address(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => {
            let [a, b, c, d] = ip.octets();
            [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        }
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// Reads an answer: a `nlmsghdr`, and an `inet_diag_msg` or an error number.
fn read(message: &[u8]) -> io::Result<Option<Found>> {
    let at = |offset: usize| {
        let bytes = message.get(offset..offset + 4)?.first_chunk()?;
        Some(u32::from_ne_bytes(*bytes))
    };
    let kind = message.get(4..6).and_then(|bytes| bytes.first_chunk());
    match kind.map(|bytes| u16::from_ne_bytes(*bytes)) {
        Some(BY_FAMILY) => {
            let (user, inode) = (at(HEADER + 64), at(HEADER + 68));
            let (Some(user), Some(inode)) = (user, inode) else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            Ok(Some(Found {
                is_connected: message.get(HEADER + 1) == Some(&ESTABLISHED),
                user,
                inode: inode.into(),
            }))
        }
        Some(ERROR) => match at(HEADER).map(|number| (number as i32).wrapping_neg()) {
            Some(number) if number == Errno::NOENT.raw_os_error() => Ok(None),
            Some(number) => Err(io::Error::from_raw_os_error(number)),
            None => Err(io::ErrorKind::InvalidData.into()),
        },
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_answer_is_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = read(&bytes);
        }
    }

    #[test]
    fn answers_are_read() {
        let mut answer = vec![0; HEADER + 72];
        answer[4] = BY_FAMILY as u8;
        answer[HEADER + 1] = ESTABLISHED;
        answer[HEADER + 64] = 7;
        answer[HEADER + 68] = 9;
        let found = Found {
            is_connected: true,
            user: 7,
            inode: 9,
        };
        assert_eq!(read(&answer).unwrap(), Some(found));
        answer[HEADER + 1] = 6;
        assert!(!read(&answer).unwrap().unwrap().is_connected);
        answer[4] = ERROR as u8;
        let mut error = |number: i32| {
            answer[HEADER..HEADER + 4].copy_from_slice(&(-number).to_ne_bytes());
            read(&answer)
        };
        assert_eq!(error(Errno::NOENT.raw_os_error()).unwrap(), None);
        assert!(error(Errno::ACCESS.raw_os_error()).is_err());
    }
}
