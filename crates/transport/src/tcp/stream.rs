//! A connection as links over TCP use it: moves bytes, and tells what the kernel knows of those on
//! their way. Part of that takes calls for which no crate has a safe function.
#![allow(unsafe_code)]

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, recv, recvmsg};
use socket2::{Socket, TcpKeepalive};
use spark_ccl_fork::Unshared;

use super::part::Part;

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
    ///
    /// # Errors
    /// Why the kernel has given the connection up, or that it takes nothing now.
    fn send(&self, parts: &[Part<'_>]) -> rustix::io::Result<usize>;

    /// Receives what is there; 0 if the peer has closed it.
    ///
    /// # Errors
    /// Why the kernel has given the connection up, or that nothing is there.
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
    /// Why the kernel has given the connection up.
    fn silence(&self) -> rustix::io::Result<Option<Duration>>;

    /// How many bytes were sent that the peer's host has not got for sure.
    ///
    /// # Errors
    /// The kernel does not know.
    fn unacknowledged(&self) -> rustix::io::Result<u64>;
}

/// A socket, and why the kernel has given its connection up. The kernel tells that once, to either
/// of the link's halves; later it reports the end of the stream, as if the peer had closed it.
pub(super) struct Connection {
    socket: Unshared<Socket>,
    lost: OnceLock<Errno>,
    /// The peer's host did not answer when it was asked last. Alone: it guards no other memory.
    was_silent: AtomicBool,
}

impl Connection {
    pub(super) fn new(socket: Unshared<Socket>) -> Self {
        Self {
            socket,
            lost: OnceLock::new(),
            was_silent: AtomicBool::new(false),
        }
    }

    /// What an error means to both halves.
    fn note(&self, error: Errno) -> Errno {
        let error = match error {
            Errno::AGAIN | Errno::INTR => return error,
            // The peer's kernel has given the connection up while the cable was out: the peer has
            // not left.
            Errno::CONNRESET if self.was_silent.load(Ordering::Relaxed) => Errno::TIMEDOUT,
            error => error,
        };
        *self.lost.get_or_init(|| error)
    }

    /// Why the kernel has given the connection up; `None` if it has not, or both ends have closed
    /// it.
    fn cause(&self) -> Option<Errno> {
        if !info(&self.socket).is_ok_and(|info| info.tcpi_state == CLOSED) {
            return None;
        }
        let untold = self.socket.take_error().ok().flatten();
        let untold = untold.and_then(|error| Errno::from_io_error(&error));
        untold.map_or_else(|| self.lost.get().copied(), |error| Some(self.note(error)))
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Stream for Connection {
    fn send(&self, parts: &[Part<'_>]) -> rustix::io::Result<usize> {
        send(&self.socket, parts).map_err(|error| self.note(error))
    }

    fn receive(&self, spaces: &mut [IoSliceMut<'_>]) -> rustix::io::Result<usize> {
        let flags = RecvFlags::DONTWAIT;
        let got = match spaces {
            [space] => recv(self, &mut **space, flags).map(|(count, _)| count),
            spaces => {
                let got = recvmsg(self, spaces, &mut RecvAncillaryBuffer::default(), flags);
                got.map(|message| message.bytes)
            }
        };
        match got {
            Ok(0) => self.cause().map_or(Ok(0), Err),
            got => got.map_err(|error| self.note(error)),
        }
    }

    fn close(&self) {
        // The peer sees the end in any case.
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    fn addresses(&self) -> Option<[SocketAddr; 2]> {
        let own = self.socket.local_addr().ok()?.as_socket()?;
        Some([own, self.socket.peer_addr().ok()?.as_socket()?])
    }

    fn keep_asking(&self) {
        let asking = TcpKeepalive::new()
            .with_time(ASK_AFTER)
            .with_interval(ASK_EVERY)
            .with_retries(ASK_AT_MOST);
        // Otherwise only a rank with bytes on their way notices that they do not arrive.
        let _ = self.socket.set_tcp_keepalive(&asking);
    }

    fn silence(&self) -> rustix::io::Result<Option<Duration>> {
        let Ok(info) = info(&self.socket) else {
            return Ok(None);
        };
        if info.tcpi_state == CLOSED {
            return Err(self.cause().unwrap_or(Errno::NOTCONN));
        }
        let heard = Duration::from_millis(info.tcpi_last_ack_recv.into());
        // The peer may still be heard where only the way to it is cut. Each repetition has doubled
        // the timeout, so that it tells since when nothing was acknowledged.
        let repeating = Duration::from_micros(info.tcpi_rto.into()) * 3 / 4;
        let silence = if info.tcpi_retransmits >= ASKED {
            Some(heard.max(repeating))
        } else {
            (info.tcpi_probes >= ASKED).then_some(heard)
        };
        self.was_silent.store(silence.is_some(), Ordering::Relaxed);
        Ok(silence)
    }

    fn unacknowledged(&self) -> rustix::io::Result<u64> {
        let mut bytes: libc::c_int = 0;
        // SAFETY: the descriptor is open as long as the socket is borrowed; the kernel writes one
        // `int`.
        let outcome =
            unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
        check(outcome as isize).map(|_| u64::try_from(bytes).unwrap_or(0))
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
    check(outcome as isize)?;
    // SAFETY: all fields are numbers, which were zeroed, and some or all of which the kernel has
    // overwritten.
    Ok(unsafe { info.assume_init() })
}

/// Sends what the kernel takes now. Crates' functions want references, which lent bytes have not.
fn send(socket: &Socket, parts: &[Part<'_>]) -> rustix::io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let sent = if let [part] = parts {
        // SAFETY: the descriptor is open as long as the socket is borrowed. The kernel only reads
        // the part's bytes, which are valid for that (contract of `Part`).
        unsafe { libc::send(socket.as_raw_fd(), part.start().cast(), part.len(), flags) }
    } else {
        // SAFETY: all fields are numbers, or pointers that may be null.
        let mut message = unsafe { MaybeUninit::<libc::msghdr>::zeroed().assume_init() };
        message.msg_iov = parts.as_ptr().cast_mut().cast();
        message.msg_iovlen = parts.len() as _;
        // SAFETY: as above; a `Part` is an `iovec`, and the kernel only reads these, too.
        unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) }
    };
    check(sent)
}

fn check(outcome: isize) -> rustix::io::Result<usize> {
    usize::try_from(outcome).map_err(|_| {
        let error = std::io::Error::last_os_error();
        Errno::from_io_error(&error).unwrap_or(Errno::IO)
    })
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use rustix::net::sockopt::set_tcp_user_timeout;

    use super::*;

    /// One of two ends as a link has it, and the other one.
    fn pair() -> (Connection, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let there = listener.accept().unwrap().0;
        (Connection::new(Unshared::new(here.into())), there)
    }

    fn receive(here: &Connection) -> rustix::io::Result<usize> {
        here.receive(&mut [IoSliceMut::new(&mut [0; 8])])
    }

    /// Closes an end as its kernel does if it knows nothing of the connection, or if the program
    /// has not read all.
    fn reset(there: TcpStream) {
        Socket::from(there)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
    }

    /// What `call` returns once that is not what every connection returns that is open.
    fn outcome<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
        let end = std::time::Instant::now() + Duration::from_secs(30);
        loop {
            match call() {
                Err(Errno::AGAIN) if std::time::Instant::now() < end => std::thread::yield_now(),
                other => return other,
            }
        }
    }

    /// The kernel would give the error to the half that asks first, and tell the other one that
    /// the peer has closed the connection.
    #[test]
    fn both_halves_hear_why_the_kernel_has_given_a_connection_up() {
        let (here, _there) = pair();
        // The peer's kernel answers, but nobody reads.
        set_tcp_user_timeout(&here.socket, 100).unwrap();
        let bytes = vec![7; 64 << 10];
        assert_eq!(
            outcome(|| here
                .send(&[Part::new(&bytes)])
                .and(Err::<(), _>(Errno::AGAIN))),
            Err(Errno::TIMEDOUT)
        );
        for _ in 0..2 {
            assert_eq!(receive(&here), Err(Errno::TIMEDOUT));
            assert_eq!(here.send(&[Part::new(&bytes)]), Err(Errno::TIMEDOUT));
            assert_eq!(here.silence(), Err(Errno::TIMEDOUT));
        }
    }

    #[test]
    fn a_reset_is_the_peers_only_where_its_host_has_answered_before() {
        for (was_silent, expected) in [(false, Errno::CONNRESET), (true, Errno::TIMEDOUT)] {
            let (here, there) = pair();
            here.was_silent.store(was_silent, Ordering::Relaxed);
            reset(there);
            assert_eq!(outcome(|| receive(&here)), Err(expected));
            assert_eq!(receive(&here), Err(expected));
            assert_eq!(here.silence(), Err(expected));
        }
    }

    /// The first bytes after that are taken, and answered by a reset.
    #[test]
    fn a_connection_is_known_to_be_lost_though_nobody_sends_again() {
        let (here, there) = pair();
        drop(there);
        assert_eq!(outcome(|| receive(&here)), Ok(0));
        assert_eq!(here.silence(), Ok(None));
        assert_eq!(here.send(&[Part::new(&[7; 500])]), Ok(500));
        let lost = outcome(|| here.silence().and(Err::<(), _>(Errno::AGAIN)));
        assert_eq!(lost, Err(Errno::PIPE));
        assert_eq!(here.unacknowledged(), Ok(500));
        assert_eq!(receive(&here), Err(Errno::PIPE));
    }
}
