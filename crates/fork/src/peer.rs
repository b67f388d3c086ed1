//! The process at the other end of a socket.

use std::mem::MaybeUninit;
use std::num::NonZeroI32;
use std::os::fd::{AsFd, AsRawFd};

/// The process at the other end of a Unix socket, as this one names it: `None` where the kernel does not tell, or where
/// it has no name here, being of another namespace of processes.
///
/// For that the kernel says 0, which the type of rustix has no room for.
pub fn peer_process(socket: impl AsFd) -> Option<NonZeroI32> {
    let mut peer = MaybeUninit::<libc::ucred>::uninit();
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is borrowed, and the kernel writes no more than `len` bytes to a local of that size.
    let outcome = unsafe {
        let fd = socket.as_fd().as_raw_fd();
        let (peer, len) = (peer.as_mut_ptr().cast(), &raw mut len);
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, peer, len)
    };
    if outcome != 0 || len as usize != size_of::<libc::ucred>() {
        return None;
    }
    // SAFETY: the kernel has written all of it.
    NonZeroI32::new(unsafe { peer.assume_init() }.pid)
}
