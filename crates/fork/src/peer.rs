//! The process at the other end of a socket.

use std::mem::MaybeUninit;
use std::num::NonZeroI32;
use std::os::fd::{AsFd, AsRawFd};

/// The process at the other end of a Unix socket, by its id in this process's PID namespace. `None` if the kernel
/// does not tell, or if the peer has no id in this namespace.
///
/// The kernel reports 0 for such a peer, which rustix's type cannot represent.
pub fn peer_process(socket: impl AsFd) -> Option<NonZeroI32> {
    let mut peer = MaybeUninit::<libc::ucred>::uninit();
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the borrow keeps the descriptor open, and the kernel writes at most `len` bytes to `peer`, which has
    // that size.
    let outcome = unsafe {
        let fd = socket.as_fd().as_raw_fd();
        let (peer, len) = (peer.as_mut_ptr().cast(), &raw mut len);
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, peer, len)
    };
    if outcome != 0 || len as usize != size_of::<libc::ucred>() {
        return None;
    }
    // SAFETY: the call succeeded and reported the full size, so the kernel has written the whole structure.
    NonZeroI32::new(unsafe { peer.assume_init() }.pid)
}
