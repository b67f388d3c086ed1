//! The process at the other end of a socket, and its user.

use std::mem::MaybeUninit;
use std::num::NonZeroI32;
use std::os::fd::{AsFd, AsRawFd};

/// The process at the other end of a Unix socket, by its id in this process's PID namespace. `None`
/// if the kernel does not tell, or if the peer has no id in this namespace.
pub fn peer_process(socket: impl AsFd) -> Option<NonZeroI32> {
    NonZeroI32::new(credentials(socket)?.pid)
}

/// The user at the other end of a Unix socket when it connected or began to listen, by its id in
/// this process's user namespace. A user without an id there has the overflow id. `None` if the
/// kernel does not tell.
pub fn peer_user(socket: impl AsFd) -> Option<u32> {
    credentials(socket).map(|peer| peer.uid)
}

/// For a process without an id in this namespace the kernel reports 0, which rustix's type cannot
/// represent.
fn credentials(socket: impl AsFd) -> Option<libc::ucred> {
    let mut peer = MaybeUninit::<libc::ucred>::uninit();
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the borrow keeps the descriptor open, and the kernel writes at most `len` bytes to
    // `peer`, which has that size.
    let outcome = unsafe {
        let fd = socket.as_fd().as_raw_fd();
        let (peer, len) = (peer.as_mut_ptr().cast(), &raw mut len);
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, peer, len)
    };
    if outcome != 0 || len as usize != size_of::<libc::ucred>() {
        return None;
    }
    // SAFETY: the call succeeded and reported the full size, so the kernel has written the whole
    // structure.
    Some(unsafe { peer.assume_init() })
}
