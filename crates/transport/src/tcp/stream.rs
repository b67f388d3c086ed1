//! A connection as links over TCP use it: moves bytes, and tells what the kernel knows of those on
//! their way. Part of that takes calls for which no crate has a safe function.
#![allow(unsafe_code)]

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags};
use rustix::net::{recv, recvmsg, send, sendmsg};
use socket2::{Socket, TcpKeepalive};
use spark_ccl_fork::Unshared;

/// How often the kernel has asked the peer's host without an answer before that counts as silence.
/// A lost packet is asked for once or twice.
const ASKED: u8 = 2;
/// How soon, and how often, the kernel asks where nothing is on its way. It gives the connection up
/// after about as long as one on which bytes are.
const ASK_AFTER: Duration = Duration::from_secs(2);
const ASK_EVERY: Duration = Duration::from_secs(7);
const ASK_AT_MOST: u32 = 127;

/// A connected stream.
pub(super) trait Stream: AsFd + Send + Sync {
    /// Sends what the kernel takes now.
    fn send(&self, parts: &[IoSlice<'_>]) -> rustix::io::Result<usize>;

    /// Receives what is there; 0 if no more will come.
    fn receive(&self, spaces: &mut [IoSliceMut<'_>]) -> rustix::io::Result<usize>;

    /// Sends no more.
    fn close(&self);

    /// The addresses that it joins, its own first. `None` if it is not TCP's.
    fn addresses(&self) -> Option<[SocketAddr; 2]>;

    /// Has the kernel ask the peer's host now and then, also where nothing is on its way.
    fn keep_asking(&self);

    /// For how long the peer's host has not answered, although the kernel asks it again and again.
    /// `None` if it answers, or was not asked. A stopped process is not silent: its kernel answers.
    ///
    /// # Errors
    /// The kernel does not know, or no longer.
    fn silence(&self) -> rustix::io::Result<Option<Duration>>;

    /// How many bytes were sent that the peer's host has not got for sure.
    ///
    /// # Errors
    /// The kernel does not know.
    fn unacknowledged(&self) -> rustix::io::Result<u64>;
}

impl Stream for Unshared<Socket> {
    fn send(&self, parts: &[IoSlice<'_>]) -> rustix::io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match parts {
            [part] => send(self, part, flags),
            parts => sendmsg(self, parts, &mut SendAncillaryBuffer::default(), flags),
        }
    }

    fn receive(&self, spaces: &mut [IoSliceMut<'_>]) -> rustix::io::Result<usize> {
        let flags = RecvFlags::DONTWAIT;
        match spaces {
            [space] => recv(self, &mut **space, flags).map(|(count, _)| count),
            spaces => {
                let got = recvmsg(self, spaces, &mut RecvAncillaryBuffer::default(), flags);
                got.map(|message| message.bytes)
            }
        }
    }

    fn close(&self) {
        // The peer sees the end in any case.
        let _ = self.shutdown(Shutdown::Write);
    }

    fn addresses(&self) -> Option<[SocketAddr; 2]> {
        let own = self.local_addr().ok()?.as_socket()?;
        Some([own, self.peer_addr().ok()?.as_socket()?])
    }

    fn keep_asking(&self) {
        let asking = TcpKeepalive::new()
            .with_time(ASK_AFTER)
            .with_interval(ASK_EVERY)
            .with_retries(ASK_AT_MOST);
        // Otherwise only a rank with bytes on their way notices that they do not arrive.
        let _ = self.set_tcp_keepalive(&asking);
    }

    fn silence(&self) -> rustix::io::Result<Option<Duration>> {
        let info = info(self)?;
        if info.tcpi_state == CLOSED {
            return Err(Errno::NOTCONN);
        }
        let heard = Duration::from_millis(info.tcpi_last_ack_recv.into());
        // The peer may still be heard where only the way to it is cut. Each repetition has doubled
        // the timeout, so that it tells since when nothing was acknowledged.
        let repeating = Duration::from_micros(info.tcpi_rto.into()) * 3 / 4;
        Ok(if info.tcpi_retransmits >= ASKED {
            Some(heard.max(repeating))
        } else {
            (info.tcpi_probes >= ASKED).then_some(heard)
        })
    }

    fn unacknowledged(&self) -> rustix::io::Result<u64> {
        let mut bytes: libc::c_int = 0;
        // SAFETY: the descriptor is open as long as the socket is borrowed; the kernel writes one
        // `int`.
        let outcome = unsafe { libc::ioctl(self.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
        check(outcome).map(|()| u64::try_from(bytes).unwrap_or(0))
    }
}

/// The state of a connection that has ended (`TCP_CLOSE`).
const CLOSED: u8 = 7;

fn info(socket: &Socket) -> rustix::io::Result<libc::tcp_info> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut bytes = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the descriptor is open as long as the socket is borrowed. The kernel writes at most
    // `bytes` bytes to `info`, which is as long.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    check(outcome)?;
    // SAFETY: all fields are numbers, which were zeroed, and some or all of which the kernel has
    // overwritten.
    Ok(unsafe { info.assume_init() })
}

fn check(outcome: libc::c_int) -> rustix::io::Result<()> {
    if outcome == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
