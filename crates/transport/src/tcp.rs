//! Links over TCP (any connected stream sockets will do).
//!
//! Each channel has sockets of its own, so that a full channel cannot hold up another. Message `n` of
//! a channel travels on its socket `n % sockets`: a fixed order needs no numbers to sort by, and
//! several sockets use several cores and paths of the kernel.
//!
//! The sender copies nothing: a slot that it lends is where the message is sent from, at once when it
//! is committed as far as the kernel takes it, and by `flush` for the rest. Of a large message that
//! lies elsewhere, only what the kernel does not take at once is copied to a slot. The receiver reads a
//! little ahead and lends messages out of what it read, or reads them to where they shall lie.
//!
//! # Trust
//! Every header is checked before its length is believed; see [`Header::parse`].
#![forbid(unsafe_code)]

mod header;
mod inbox;
mod rx;
#[cfg(test)]
mod tests;
mod tx;

use std::sync::Arc;

use rustix::io::Errno;
use socket2::Socket;

use crate::{Geometry, LinkError};

pub use header::{HEADER_BYTES, Header};
pub use rx::Rx;
pub use tx::Tx;

/// Messages from this size on are sent from and received to where they lie. Copying a smaller one takes
/// less than a second call.
const DIRECT_BYTES: usize = 8 << 10;

/// A link over connected sockets: `sockets[channel]`, in an order on which both ends agree.
///
/// # Errors
/// When the sockets do not fit the geometry, or refuse their options.
pub fn link(sockets: Vec<Vec<Socket>>, geometry: Geometry) -> Result<(Tx, Rx), LinkError> {
    check(&sockets, geometry)?;
    let mut shared = Vec::with_capacity(sockets.len());
    for channel in sockets {
        let mut channel_shared = Vec::with_capacity(channel.len());
        for socket in channel {
            send_at_once(&socket)?;
            if stays_here(&socket) {
                // Where it is refused, all works as well, but slower.
                let _ = rustix::net::sockopt::set_tcp_congestion(&socket, "reno");
            }
            channel_shared.push(Arc::new(socket));
        }
        shared.push(channel_shared);
    }
    Ok((Tx::new(&shared, geometry), Rx::new(&shared, geometry)))
}

fn check(sockets: &[Vec<Socket>], geometry: Geometry) -> Result<(), LinkError> {
    if sockets.len() != geometry.channels || sockets.iter().any(Vec::is_empty) {
        return Err(LinkError::Misuse(format!(
            "expected at least one socket for each of {} channels, got {:?}",
            geometry.channels,
            sockets.iter().map(Vec::len).collect::<Vec<_>>()
        )));
    }
    if geometry.slots == 0 || u32::try_from(geometry.slot_bytes).is_err() {
        return Err(LinkError::Misuse(format!(
            "a link over TCP cannot have {geometry:?}"
        )));
    }
    Ok(())
}

/// No message waits for the acknowledgement of the one before it.
///
/// The buffers' sizes stay with the kernel: it grows them to what the path needs, and beyond what
/// `setsockopt` may ask for; asking would only stop that.
fn send_at_once(socket: &Socket) -> Result<(), LinkError> {
    match rustix::net::sockopt::set_tcp_nodelay(socket, true) {
        // A Unix socket never holds anything back.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOPROTOOPT) => Ok(()),
        Err(error) => Err(LinkError::Os {
            call: "setsockopt(TCP_NODELAY)",
            error,
        }),
    }
}

/// Whether what the socket sends does not leave the host. There is nothing to be gentle with then, so
/// no algorithm shall pace the bytes.
fn stays_here(socket: &Socket) -> bool {
    let addresses = (socket.local_addr(), socket.peer_addr());
    let (Ok(own), Ok(peer)) = addresses else {
        return false;
    };
    let ip = |address: socket2::SockAddr| address.as_socket().map(|address| address.ip());
    ip(own).is_some_and(|own| ip(peer) == Some(own))
}

/// What an error of `send` or `recv` means. `None`: not yet.
fn ended_by(call: &'static str, error: Errno) -> Option<LinkError> {
    match error {
        Errno::AGAIN | Errno::INTR => None,
        Errno::PIPE | Errno::CONNRESET => Some(LinkError::Closed),
        error => Some(LinkError::Os { call, error }),
    }
}

/// `Vec`s of foreign or user-chosen sizes: running out of memory is an error, not an abort.
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

fn no_channel(channel: usize, channels: usize) -> LinkError {
    LinkError::Misuse(format!("channel {channel} of a link that has {channels}"))
}
