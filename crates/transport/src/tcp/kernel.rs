//! What the kernel knows of a connection, by a call for which no crate has a safe function.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::time::Duration;

use rustix::io::Errno;
use socket2::Socket;

/// How often the kernel has asked the peer's host without an answer before that counts as silence. A lost packet is
/// asked for once or twice.
const ASKED: u8 = 2;
/// The state of a connection that has ended (`TCP_CLOSE`).
const CLOSED: u8 = 7;

/// For how long the peer's host has not answered, although the kernel asks it again and again. `None` if it answers, or
/// was not asked. A stopped process is not silent: its kernel answers.
///
/// # Errors
/// The kernel does not know, or no longer.
pub(super) fn silence(socket: &Socket) -> rustix::io::Result<Option<Duration>> {
    let info = info(socket)?;
    if info.tcpi_state == CLOSED {
        return Err(Errno::NOTCONN);
    }
    let is_asked = info.tcpi_retransmits.max(info.tcpi_probes) >= ASKED;
    let silence = Duration::from_millis(info.tcpi_last_ack_recv.into());
    Ok(is_asked.then_some(silence))
}

fn info(socket: &Socket) -> rustix::io::Result<libc::tcp_info> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut bytes = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the descriptor is open as long as the socket is borrowed. The kernel writes at most `bytes` bytes to
    // `info`, which is as long.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    if outcome == 0 {
        // SAFETY: all fields are numbers, which were zeroed, and some or all of which the kernel has overwritten.
        return Ok(unsafe { info.assume_init() });
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
