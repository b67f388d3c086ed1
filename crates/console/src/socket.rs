//! Sockets that are bound to an interface.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU32;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

/// More than sockets and tries that the other rank has begun.
const BACKLOG: i32 = 128;

/// Connects to an address, from one of this host if it is given, and over that interface if one is.
///
/// # Errors
///
/// As the system says, also if nobody answers within `limit`.
pub fn connect_from(
    source: Option<IpAddr>,
    device: Option<NonZeroU32>,
    target: SocketAddr,
    limit: Duration,
) -> io::Result<TcpStream> {
    let socket = socket_on(device, Domain::for_address(target))?;
    if let Some(source) = source {
        socket.bind(&SocketAddr::new(source, 0).into())?;
    }
    socket.connect_timeout(&target.into(), limit)?;
    Ok(socket.into())
}

/// Listens at a new port of an address of this host, for what arrives by that interface if one is
/// given.
///
/// # Errors
///
/// As the system says.
pub fn listen_at(ip: IpAddr, device: Option<NonZeroU32>) -> io::Result<TcpListener> {
    let at = SocketAddr::new(ip, 0);
    let socket = socket_on(device, Domain::for_address(at))?;
    socket.bind(&at.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// A socket that is bound to an interface, if one is given.
fn socket_on(device: Option<NonZeroU32>, domain: Domain) -> io::Result<Socket> {
    let socket = Socket::new(domain, Type::STREAM, None)?;
    if device.is_some() {
        // The option is of both families.
        socket.bind_device_by_index_v4(device)?;
    }
    Ok(socket)
}
