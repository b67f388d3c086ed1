//! Socket operations with deadlines. Nothing here blocks without one, or changes a connected
//! socket's blocking mode.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use rustix::net::{RecvFlags, SendFlags};
use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};

use crate::address::Address;

/// The most connections the kernel queues for a listener. The kernel lowers it to its own limit.
const BACKLOG: i32 = 4096;
/// The idle time before keepalive probes: a vanished host is noticed after a minute.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;

/// The deadline that is `timeout` from now.
pub(crate) fn deadline_in(timeout: Duration) -> Instant {
    deadline_after(Instant::now(), timeout)
}

/// The deadline that is `timeout` after `since`.
pub(crate) fn deadline_after(since: Instant, timeout: Duration) -> Instant {
    let day = Duration::from_secs(24 * 3600);
    since + timeout.min(365 * day)
}

/// Reads without blocking: `None` if nothing is available, `Some(0)` at the end of the stream.
pub(crate) fn try_read(socket: &Socket, buf: &mut [u8]) -> io::Result<Option<usize>> {
    not_yet(rustix::net::recv(socket, buf, RecvFlags::DONTWAIT).map(|(count, _)| count))
}

/// Writes without blocking as much as fits: `None` if nothing does.
pub(crate) fn try_write(socket: &Socket, buf: &[u8]) -> io::Result<Option<usize>> {
    not_yet(rustix::net::send(
        socket,
        buf,
        SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
    ))
}

/// Whether the system, or this process, has no descriptor left.
pub(crate) fn lacks_descriptors(error: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE)
    )
}

fn not_yet(result: rustix::io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(count) => Ok(Some(count)),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Writes all of `buf`, waiting for space until the deadline.
pub(crate) fn write_all(socket: &Socket, mut buf: &[u8], deadline: Instant) -> io::Result<()> {
    while !buf.is_empty() {
        match try_write(socket, buf)? {
            Some(count) => buf = &buf[count..],
            None => wait(socket.as_fd(), PollFlags::OUT, deadline)?,
        }
    }
    Ok(())
}

/// Waits until the socket is ready, or fails with [`io::ErrorKind::TimedOut`].
pub(crate) fn wait(fd: BorrowedFd<'_>, flags: PollFlags, deadline: Instant) -> io::Result<()> {
    loop {
        let mut fds = [PollFd::from_borrowed_fd(fd, flags)];
        poll(&mut fds, Some(deadline))?;
        if !fds[0].revents().is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

/// Sleeps until a descriptor is ready, `until` has passed, or a signal arrives.
pub(crate) fn poll(fds: &mut [PollFd<'_>], until: Option<Instant>) -> io::Result<()> {
    let timeout = until.map(|until| {
        let left = until.saturating_duration_since(Instant::now());
        Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        }
    });
    match rustix::event::poll(fds, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// An eventfd that wakes a thread in [`poll`].
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Bell(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?))
    }

    /// Rings. The bell keeps ringing until it is silenced.
    pub(crate) fn ring(&self) {
        // Fails only if the counter would overflow; then the bell rings already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Stops the ringing.
    pub(crate) fn silence(&self) {
        // Fails only if the bell does not ring.
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A non-blocking TCP listener. Port 0 lets the kernel choose.
pub(crate) fn listen_tcp(address: SocketAddr) -> io::Result<Socket> {
    let socket = tcp_socket(&address)?;
    // Connections of an earlier run in TIME_WAIT must not block the port.
    socket.set_reuse_address(true)?;
    if let SocketAddr::V6(v6) = address {
        // The unspecified address serves IPv4, too. A specific one is IPv6 in any case.
        socket.set_only_v6(!v6.ip().is_unspecified())?;
    }
    listen(socket, &address.into())
}

/// Listens beside another listener, at its address and port, for what arrives over the interface of
/// `address`. Connections accepted here stay on that interface both ways. Everything else goes to
/// the other listener.
pub(crate) fn listen_on_device(listener: &Socket, address: Address) -> io::Result<Socket> {
    let port = listener.local_addr()?.as_socket().map_or(0, |at| at.port());
    let socket = tcp_socket(&address.with_port(port))?;
    socket.set_reuse_address(true)?;
    if address.ip.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // The two may have one port only while they share it with others of this user. Meanwhile the
    // kernel prefers the first one it finds; afterwards, the one bound to the interface.
    let share = |shared| [listener, &socket].map(|one| one.set_reuse_port(shared));
    let shares = share(true).into_iter().collect::<io::Result<()>>();
    let listens = shares
        .and_then(|()| bind(&socket, address, port))
        .and_then(|()| socket.listen(BACKLOG));
    share(false).into_iter().collect::<io::Result<()>>()?;
    listens?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Has the kernel check whether the other host is still there, and end the connection if not.
pub(crate) fn keep_asking(socket: &Socket) {
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    // Without it, the connection ends with the program.
    let _ = socket.set_tcp_keepalive(&keepalive);
}

/// A non-blocking listener in the abstract Unix namespace.
pub(crate) fn listen_unix(name: &str) -> io::Result<Socket> {
    listen(
        Socket::new(Domain::UNIX, Type::STREAM, None)?,
        &abstract_address(name)?,
    )
}

fn listen(socket: Socket, address: &SockAddr) -> io::Result<Socket> {
    socket.bind(address)?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Connects to `target` from the local address `source`, or from any.
pub(crate) fn connect_tcp(
    source: Option<Address>,
    target: SocketAddr,
    deadline: Instant,
) -> io::Result<Socket> {
    let socket = tcp_socket_at(source, &target)?;
    let left = deadline
        .saturating_duration_since(Instant::now())
        .max(Duration::from_millis(1));
    socket.connect_timeout(&target.into(), left)?;
    settle_tcp(&socket)?;
    Ok(socket)
}

/// Whether an address is this host's. The kernel reaches its own addresses from themselves. Sends
/// nothing.
pub(crate) fn is_own(ip: IpAddr) -> bool {
    if ip.is_loopback() {
        return true;
    }
    source_to(SocketAddr::new(ip, 9)) == Some(ip)
}

/// The address from which the kernel would send to `target`. `None` if no route leads there. Sends
/// nothing.
pub(crate) fn source_to(target: SocketAddr) -> Option<IpAddr> {
    let source = Socket::new(Domain::for_address(target), Type::DGRAM, None).and_then(|socket| {
        socket.connect(&target.into())?;
        socket.local_addr()
    });
    source.ok()?.as_socket().map(|source| source.ip())
}

/// Connects to a listener in the abstract Unix namespace, waiting while its backlog is full.
pub(crate) fn connect_unix(name: &str, deadline: Instant) -> io::Result<Socket> {
    let address = abstract_address(name)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    loop {
        match socket.connect(&address) {
            Ok(()) => break,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if Instant::now() >= deadline {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(error) => return Err(error),
        }
    }
    socket.set_nonblocking(false)?;
    Ok(socket)
}

/// Connects to a listener in the abstract Unix namespace. Fails with [`io::ErrorKind::WouldBlock`]
/// while its backlog is full.
pub(crate) fn begin_unix(name: &str) -> io::Result<Socket> {
    let address = abstract_address(name)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&address)?;
    socket.set_nonblocking(false)?;
    Ok(socket)
}

/// Starts to connect to `target`. Returns whether the connection is complete already. If it is not,
/// the socket becomes writable once it is, and [`end_tcp`] returns the outcome.
pub(crate) fn begin_tcp(source: Option<Address>, target: SocketAddr) -> io::Result<(Socket, bool)> {
    let socket = tcp_socket_at(source, &target)?;
    socket.set_nonblocking(true)?;
    match socket.connect(&target.into()) {
        Ok(()) => end_tcp(&socket).map(|()| (socket, true)),
        Err(error)
            if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) =>
        {
            Ok((socket, false))
        }
        Err(error) => Err(error),
    }
}

/// Returns the outcome of connecting, and makes the socket ready for use.
pub(crate) fn end_tcp(socket: &Socket) -> io::Result<()> {
    if let Some(error) = socket.take_error()? {
        return Err(error);
    }
    socket.set_nonblocking(false)?;
    settle_tcp(socket)
}

/// Checks and configures a new TCP connection.
fn settle_tcp(socket: &Socket) -> io::Result<()> {
    // If nobody listens on a loopback port of the ephemeral range, the kernel may choose that port
    // as the source, and connect the socket to itself.
    if socket.local_addr()?.as_socket() == socket.peer_addr()?.as_socket() {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    socket.set_tcp_nodelay(true)
}

/// A connected pair of TCP sockets within this process.
pub(crate) fn tcp_pair() -> io::Result<(Socket, Socket)> {
    let any = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);
    let listener = listen_tcp(any)?;
    let address = listener
        .local_addr()?
        .as_socket()
        .ok_or(io::ErrorKind::InvalidData)?;
    let deadline = Instant::now() + Duration::from_secs(5);
    let near = connect_tcp(None, address, deadline)?;
    loop {
        wait(listener.as_fd(), PollFlags::IN, deadline)?;
        let (far, from) = listener.accept()?;
        // Another process may have connected to the port first.
        if from.as_socket() == near.local_addr()?.as_socket() {
            far.set_tcp_nodelay(true)?;
            return Ok((near, far));
        }
    }
}

fn tcp_socket(address: &SocketAddr) -> io::Result<Socket> {
    Socket::new(
        Domain::for_address(*address),
        Type::STREAM,
        Some(Protocol::TCP),
    )
}

/// A socket that connects to `target` from this address, over its interface.
fn tcp_socket_at(source: Option<Address>, target: &SocketAddr) -> io::Result<Socket> {
    let socket = tcp_socket(target)?;
    if let Some(source) = source {
        bind(&socket, source, 0)?;
    }
    Ok(socket)
}

/// Binds a socket to an address, and to its interface if it names one. The socket then sends only
/// over that interface, whatever the routes say, and receives only from it. Needs no privileges
/// from Linux 5.7 on.
fn bind(socket: &Socket, address: Address, port: u16) -> io::Result<()> {
    if address.device.is_some() {
        // The option applies to both families.
        socket.bind_device_by_index_v4(address.device)?;
    }
    socket.bind(&address.with_port(port).into())
}

fn abstract_address(name: &str) -> io::Result<SockAddr> {
    SockAddr::unix(format!("\0{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_by_the_interface_goes_to_its_listener() {
        let index = std::fs::read_to_string("/sys/class/net/lo/ifindex").unwrap();
        let device = Some(index.trim().parse().unwrap());
        let address = Address {
            device,
            ..Address::LOOPBACK
        };
        let free = listen_tcp(address.with_port(0)).unwrap();
        let bound = listen_on_device(&free, address).unwrap();
        let target = free.local_addr().unwrap().as_socket().unwrap();
        assert_eq!(bound.local_addr().unwrap().as_socket(), Some(target));
        let deadline = deadline_in(Duration::from_secs(30));
        let near = connect_tcp(Some(address), target, deadline).unwrap();
        wait(bound.as_fd(), PollFlags::IN, deadline).unwrap();
        let (far, _) = bound.accept().unwrap();
        let both = [near, far].map(|end| end.device_index_v4().unwrap());
        assert_eq!(both, [device; 2]);
    }

    #[test]
    fn own_addresses_are_told_from_others() {
        let own = |text: &str| is_own(text.parse().unwrap());
        for loopback in ["127.0.0.1", "127.8.9.10", "::1"] {
            assert!(own(loopback));
        }
        let named = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
        // Sends no packet; on a host without a route there is nothing to check.
        if named.connect("192.0.2.7:9").is_ok() {
            assert!(is_own(named.local_addr().unwrap().ip()));
        }
        // Addresses for documentation, which no host has.
        assert!(!own("192.0.2.7"));
        assert!(!own("2001:db8::7"));
    }
}
