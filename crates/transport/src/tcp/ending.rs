//! When a link between hosts has ended. Both of its halves ask, each of its own sockets.

use super::stream::Stream;
use crate::LinkError;

/// A connection as one half of a link sees it.
pub(super) trait Connected {
    fn stream(&self) -> &dyn Stream;

    /// Why nothing more will come, or go, over it.
    fn ended(&self) -> Option<&LinkError>;

    /// Nothing comes back over it now, and all that has come was taken.
    fn is_silent(&self) -> bool;
}

/// Why nothing more will come, or go, over any of these sockets, the first `homes` of which the
/// link has from its beginning. A silent one may carry again, unless the peer has left.
///
/// A reset does not tell a killed peer from a firewall that has forgotten a connection. So if all
/// connections from the beginning were reset, an end that only receives learns late that the peer
/// is dead: only when the kernel finds by keepalive that the spare ones are lost. The peer's host
/// answers for about a minute for a connection that it has closed (`tcp_fin_timeout`); the kernel
/// gives a silent one up after some 15 minutes.
pub(super) fn end_of<T: Connected>(sockets: &[T], homes: usize) -> Option<LinkError> {
    let homes = &sockets[..homes];
    let has_left = homes.iter().any(|home| home.stream().is_closed_by_peer());
    let is_over = |socket: &T| {
        let stream = socket.stream();
        match socket.ended() {
            // A peer that has enough spare connections by this route closes its half, but still
            // reads.
            Some(_) if stream.is_closed_by_peer() => has_left || stream.silence().is_err(),
            Some(_) => true,
            None => has_left && socket.is_silent(),
        }
    };
    if !sockets.iter().all(is_over) {
        None
    } else if has_left {
        Some(LinkError::Closed)
    } else {
        homes.iter().find_map(T::ended).cloned()
    }
}
