//! Links over TCP, or over any other connected stream sockets.
//!
//! Message `n` travels on socket `n % sockets`: with this fixed order, messages need not be
//! reordered. Several sockets use several cores and paths of the kernel.
//!
//! The sender does not copy. The commit of a message sends from its slot as much as the kernel
//! accepts, and `flush` sends the rest. A large message that is not in a slot is sent from where it
//! lies; within a host, what the kernel does not accept at once is copied to a slot. The receiver
//! reads a little ahead and returns messages in its read buffer, or reads them directly to their
//! destination.
//!
//! A link between hosts keeps each message until it is acknowledged, where it lies or in a copy.
//! When a rail falls silent, the others carry what it has not delivered. When all rails are silent,
//! either end asks for a connection by any other network ([`Tx::ask_by`]), which then carries the
//! messages.
//!
//! # Trust
//! Every header is checked before its length is used; see [`Header::parse`].
#![deny(unsafe_code)]

mod buffers;
mod detours;
mod ending;
mod entry;
mod frame;
mod header;
mod inbox;
mod outbox;
mod part;
mod rail;
mod rails;
mod rx;
mod spares;
mod stream;
#[cfg(test)]
mod tests;
mod tx;

use std::sync::Arc;

use detours::Detours;
pub use entry::Entry;
pub use header::{HEADER_BYTES, Header};
use rails::Link;
use rustix::io::Errno;
pub use rx::Rx;
use socket2::Socket;
pub use spares::SPARE_WITHIN;
use spark_ccl_fork::Unshared;
use stream::{Connection, Stream};
pub use tx::Tx;

use crate::{Geometry, LinkError};

/// Messages from this size on are sent from and received into the caller's memory. Copying a
/// smaller one costs less than a second system call.
const SLOTLESS_BYTES: usize = 8 << 10;

/// Makes a link over connected sockets, in an order on which both ends agree.
///
/// # Errors
/// When the sockets do not fit the geometry, or an option cannot be set.
pub fn link(sockets: Vec<Unshared<Socket>>, geometry: Geometry) -> Result<(Tx, Rx), LinkError> {
    check(&sockets, geometry)?;
    for socket in &sockets {
        set_nodelay(socket)?;
        if is_local(socket) {
            // If the kernel refuses, the link still works, but more slowly.
            let _ = rustix::net::sockopt::set_tcp_congestion(socket, "reno");
        }
    }
    let streams = sockets
        .into_iter()
        .map(|socket| Arc::new(Connection::new(socket)) as _)
        .collect::<Vec<_>>();
    let link = Arc::new(Link::new(&streams, geometry));
    link.be_kept();
    Ok(halves(link, &streams, geometry))
}

fn halves(link: Arc<Link>, streams: &[Arc<dyn Stream>], geometry: Geometry) -> (Tx, Rx) {
    let may_detour = link.outbox.lock().retains;
    let detours = may_detour.then(|| Detours::of(&link.spares));
    (Tx::new(link, geometry), Rx::new(streams, geometry, detours))
}

fn check(sockets: &[Unshared<Socket>], geometry: Geometry) -> Result<(), LinkError> {
    if sockets.is_empty() {
        return Err(LinkError::Misuse(
            "expected at least one socket for a link, got none".to_owned(),
        ));
    }
    if geometry.slots == 0 || u32::try_from(geometry.slot_bytes).is_err() {
        return Err(LinkError::Misuse(format!(
            "a link over TCP cannot have {geometry:?}"
        )));
    }
    Ok(())
}

/// Disables Nagle's algorithm: no message waits for the acknowledgement of an earlier one.
///
/// The buffer sizes are left to the kernel, which grows them as the path requires, beyond the limit
/// of `setsockopt`. Setting them would only stop that.
fn set_nodelay(socket: &Socket) -> Result<(), LinkError> {
    match rustix::net::sockopt::set_tcp_nodelay(socket, true) {
        // A Unix socket has no such delay.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOPROTOOPT) => Ok(()),
        Err(error) => Err(LinkError::Os {
            call: "setsockopt(TCP_NODELAY)",
            error,
        }),
    }
}

/// Whether the socket's traffic stays on this host. There is no network to protect then, so the
/// bytes need no pacing.
fn is_local(socket: &Socket) -> bool {
    let addresses = (socket.local_addr(), socket.peer_addr());
    let (Ok(own), Ok(peer)) = addresses else {
        return false;
    };
    let ip = |address: socket2::SockAddr| address.as_socket().map(|address| address.ip());
    ip(own).is_some_and(|own| ip(peer) == Some(own))
}

/// Translates an error of `send` or `recv`. `None`: not yet.
fn ended_by(call: &'static str, error: Errno) -> Option<LinkError> {
    match error {
        Errno::AGAIN | Errno::INTR => None,
        Errno::PIPE => Some(LinkError::Closed),
        error => Some(LinkError::Os { call, error }),
    }
}

/// Resizes a `Vec` to a size chosen by a peer or a user: a lack of memory is an error, not an
/// abort.
fn resize(bytes: &mut Vec<u8>, len: usize) -> Result<(), LinkError> {
    bytes
        .try_reserve_exact(len.saturating_sub(bytes.len()))
        .map_err(|_| LinkError::Os {
            call: "allocating a link's buffer",
            error: Errno::NOMEM,
        })?;
    bytes.resize(len, 0);
    Ok(())
}
