//! A connection as links over TCP use it: moves bytes, and tells what the kernel knows of those on
//! their way. Part of that takes calls for which no crate has a safe function.
#![allow(unsafe_code)]

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{RecvAncillaryBuffer, RecvFlags, recv, recvmsg};
use socket2::{SockAddr, SockAddrStorage, Socket, TcpKeepalive};
use spark_ccl_fork::Unshared;
use spark_ccl_log::Mutex;

use super::part::Part;

/// After how many probes without an answer the peer's host counts as silent. A lost packet causes
/// one or two.
const ASKED: u8 = 2;
/// How soon, and how often, the kernel probes an idle connection. It gives one up after about the
/// same time as a connection with bytes on their way.
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

    /// The addresses that it joins, or joined, its own first. `None` if it is not TCP's.
    fn addresses(&self) -> Option<[SocketAddr; 2]>;

    /// Has the kernel probe the peer's host now and then, also while the connection is idle.
    fn keep_asking(&self);

    /// For how long the peer's host has not answered, although the kernel asks it again and again.
    /// `None` if it answers, or was not asked. A stopped process is not silent: its kernel answers.
    ///
    /// # Errors
    /// Why the kernel has given the connection up.
    fn silence(&self) -> rustix::io::Result<Option<Duration>>;

    /// Whether the peer is known to have closed it: no more bytes follow. Nothing but the peer's
    /// program says so; a reset does not, nor an error.
    fn is_closed_by_peer(&self) -> bool;

    /// How many bytes have come that were not received.
    fn unread(&self) -> u64;

    /// How many sent bytes the peer's host has not acknowledged.
    ///
    /// # Errors
    /// The kernel does not know.
    fn unacknowledged(&self) -> rustix::io::Result<u64>;
}

/// A socket, and how its connection has ended.
pub(super) struct Connection {
    socket: Unshared<Socket>,
    /// Calls take turns. The kernel tells the first call the error, and reports the end of the
    /// stream to later ones, as if the peer had closed it.
    end: Mutex<End>,
}

#[derive(Default)]
struct End {
    is_by_peer: bool,
    /// Why the kernel has given the connection up.
    lost: Option<Errno>,
}

impl Connection {
    pub(super) fn new(socket: Unshared<Socket>) -> Self {
        Self {
            socket,
            end: Mutex::default(),
        }
    }

    /// Notes an error of a call, if it ends the connection; returns the one to report.
    fn note(&self, end: &mut End, error: Errno) -> Errno {
        // The kernel may refuse a call, also for memory that is not there.
        if info(&self.socket).is_ok_and(|info| info.tcpi_state != CLOSED) {
            return error;
        }
        *end.lost.get_or_insert_with(|| {
            // By this error, the kernel reports a reset that answers bytes sent after the peer had
            // closed.
            end.is_by_peer |= error == Errno::PIPE;
            error
        })
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Stream for Connection {
    fn send(&self, parts: &[Part<'_>]) -> rustix::io::Result<usize> {
        let mut end = self.end.lock();
        send(&self.socket, parts).map_err(|error| match error {
            Errno::AGAIN | Errno::INTR => error,
            error => self.note(&mut end, error),
        })
    }

    fn receive(&self, spaces: &mut [IoSliceMut<'_>]) -> rustix::io::Result<usize> {
        let flags = RecvFlags::DONTWAIT;
        let mut end = self.end.lock();
        let got = match spaces {
            [space] => recv(self, &mut **space, flags).map(|(count, _)| count),
            spaces => {
                let got = recvmsg(self, spaces, &mut RecvAncillaryBuffer::default(), flags);
                got.map(|message| message.bytes)
            }
        };
        match (got, end.lost) {
            (Ok(0), Some(lost)) => Err(lost),
            (Ok(0), None) => {
                end.is_by_peer = true;
                Ok(0)
            }
            (Ok(_) | Err(Errno::AGAIN | Errno::INTR), _) => got,
            (Err(error), _) => Err(self.note(&mut end, error)),
        }
    }

    fn close(&self) {
        // The peer sees the end in any case.
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    fn addresses(&self) -> Option<[SocketAddr; 2]> {
        let own = self.socket.local_addr().ok()?;
        let peer = peer_of(&self.socket, own.len()).ok()?;
        Some([own.as_socket()?, peer.as_socket()?])
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
            return self.end.lock().lost.map_or(Ok(None), Err);
        };
        if [CLOSED, CLOSED_BY_PEER].contains(&info.tcpi_state) {
            let mut end = self.end.lock();
            if info.tcpi_state == CLOSED {
                let untold = self.socket.take_error().ok().flatten();
                let untold = untold.and_then(|error| Errno::from_io_error(&error));
                // No error, and none was told: both ends have closed it.
                let error = untold.or(end.lost).unwrap_or(Errno::PIPE);
                return Err(self.note(&mut end, error));
            }
            end.is_by_peer = true;
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

    fn is_closed_by_peer(&self) -> bool {
        self.end.lock().is_by_peer
    }

    fn unread(&self) -> u64 {
        ioctl_fionread(self).unwrap_or(0)
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
/// The state of a connection that the peer has closed (`TCP_CLOSE_WAIT`).
const CLOSED_BY_PEER: u8 = 8;

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

/// The peer's address, of this length. `getpeername` does not tell that of a connection that has
/// ended.
fn peer_of(socket: &Socket, len: libc::socklen_t) -> std::io::Result<SockAddr> {
    let ask = |room: *mut SockAddrStorage, bytes: *mut libc::socklen_t| {
        // SAFETY: `bytes` is borrowed by this call alone, and the room is at least that long, as
        // any kind of address fits there.
        let outcome = unsafe {
            *bytes = len;
            let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERNAME);
            libc::getsockopt(socket.as_raw_fd(), level, name, room.cast(), bytes)
        };
        Ok(check(outcome as isize)?)
    };
    // SAFETY: where the kernel reports no error, it has written an address of `bytes` bytes.
    unsafe { SockAddr::try_init(ask) }.map(|(_, address)| address)
}

/// Sends what the kernel takes now. Functions of crates take references, which must not be made to
/// lent bytes.
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
        // SAFETY: the descriptor is open as long as the socket is borrowed. The kernel only reads
        // the message, its parts, each of which is an `iovec`, and their bytes. All are valid until
        // this returns: the bytes by the contract of `Part`.
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
    use std::io::Write;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::ptr::NonNull;

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

    /// The first result of `call` that tells of an end: open connections give others.
    fn outcome<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
        let end = std::time::Instant::now() + Duration::from_secs(30);
        loop {
            match call() {
                Err(Errno::AGAIN) if std::time::Instant::now() < end => std::thread::yield_now(),
                other => return other,
            }
        }
    }

    /// Why a connection is found lost, which is open still.
    fn lost(here: &Connection) -> Errno {
        outcome(|| here.silence().and(Err::<(), _>(Errno::AGAIN))).unwrap_err()
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

    /// A firewall that has forgotten a connection resets it, too.
    #[test]
    fn a_reset_does_not_say_that_the_peer_has_closed_a_connection() {
        let (here, mut there) = pair();
        there.write_all(&[7; 5]).unwrap();
        let addresses = here.addresses();
        assert!(addresses.is_some());
        reset(there);
        assert_eq!(lost(&here), Errno::CONNRESET);
        assert_eq!(here.addresses(), addresses);
        assert_eq!(here.unread(), 5);
        assert_eq!(receive(&here), Ok(5));
        assert_eq!(here.unread(), 0);
        for _ in 0..2 {
            assert_eq!(receive(&here), Err(Errno::CONNRESET));
            assert_eq!(here.send(&[Part::new(&[7])]), Err(Errno::CONNRESET));
        }
        assert!(!here.is_closed_by_peer());
    }

    /// As where nothing is mapped any more.
    #[test]
    fn a_call_that_the_kernel_refuses_does_not_end_a_connection() {
        let (here, there) = pair();
        // SAFETY: the kernel reads these bytes alone, and finds that there are none.
        let nowhere = unsafe { Part::lent(NonNull::slice_from_raw_parts(NonNull::dangling(), 9)) };
        assert_eq!(here.send(&[nowhere]), Err(Errno::FAULT));
        assert_eq!(here.silence(), Ok(None));
        assert_eq!(here.send(&[Part::new(&[7])]), Ok(1));
        reset(there);
        assert_eq!(lost(&here), Errno::CONNRESET);
    }

    /// The kernel tells the cause to one of them.
    #[test]
    fn calls_at_once_hear_the_same_cause() {
        for _ in 0..200 {
            let (here, there) = pair();
            let begun = std::sync::Barrier::new(3);
            let heard = std::thread::scope(|scope| {
                let look = scope.spawn(|| {
                    let first = here.silence();
                    begun.wait();
                    (first, lost(&here))
                });
                let read = scope.spawn(|| {
                    let first = receive(&here);
                    begun.wait();
                    (first, outcome(|| receive(&here)))
                });
                begun.wait();
                reset(there);
                (look.join().unwrap(), read.join().unwrap())
            });
            let look = (Ok(None), Errno::CONNRESET);
            let read = (Err(Errno::AGAIN), Err(Errno::CONNRESET));
            assert_eq!(heard, (look, read));
            assert!(!here.is_closed_by_peer());
        }
    }

    /// The peer has closed it before, and nobody has read that when the kernel tells of the reset.
    #[test]
    fn a_connection_that_the_peer_has_closed_is_known_to_be_that() {
        let told: [fn(&Connection) -> rustix::io::Result<()>; 3] = [
            |here| here.silence().and(Err(Errno::AGAIN)),
            |here| here.send(&[Part::new(&[7])]).and(Err(Errno::AGAIN)),
            |here| receive(here).map(|_| ()),
        ];
        for tell in told {
            let (here, there) = pair();
            drop(there);
            here.send(&[Part::new(&[7; 500])]).unwrap();
            let _ = outcome(|| tell(&here));
            assert!(here.is_closed_by_peer());
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
        assert!(here.is_closed_by_peer());
        assert_eq!(lost(&here), Errno::PIPE);
        assert_eq!(here.unacknowledged(), Ok(500));
        assert_eq!(receive(&here), Err(Errno::PIPE));
    }
}
