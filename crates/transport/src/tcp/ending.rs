//! When a link between hosts has ended. Both of its halves ask, each of its own sockets.

use crate::LinkError;

/// A connection as one half of a link sees it.
pub(super) trait Connected {
    /// Why no more will come, or go, over it.
    fn lost(&self) -> Option<&LinkError>;

    /// Nothing comes back over it now.
    fn is_silent(&self) -> bool;
}

/// Why nothing more will come, or go, over any of these sockets, the first `homes` of which the
/// link has from its beginning. A silent one may carry again, unless the peer has left.
pub(super) fn end_of<T: Connected>(sockets: &[T], homes: usize) -> Option<LinkError> {
    let errors = || sockets[..homes].iter().filter_map(T::lost);
    // A spare one it also closes where it has enough by that way.
    let has_left = errors().any(|error| matches!(error, LinkError::Closed));
    let is_over = |socket: &T| socket.lost().is_some() || has_left && socket.is_silent();
    if !sockets.iter().all(is_over) {
        return None;
    }
    if has_left {
        return Some(LinkError::Closed);
    }
    errors().next().cloned()
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    /// Carries, is silent, was given up, or was closed by the peer.
    #[derive(Clone, Copy, PartialEq)]
    enum One {
        Live,
        Silent,
        Lost,
        Closed,
    }
    use One::{Closed, Live, Lost, Silent};

    const TIMED_OUT: LinkError = LinkError::Os {
        call: "send",
        error: Errno::TIMEDOUT,
    };

    impl Connected for One {
        fn lost(&self) -> Option<&LinkError> {
            match self {
                Lost => Some(&TIMED_OUT),
                Closed => Some(&LinkError::Closed),
                Live | Silent => None,
            }
        }

        fn is_silent(&self) -> bool {
            *self == Silent
        }
    }

    #[test]
    fn a_link_ends_with_its_connections_or_with_the_peer() {
        for (sockets, closed) in [
            (&[Live, Lost][..], None),
            (&[Closed, Live], None),
            (&[Closed, Lost, Live], None),
            (&[Lost, Silent], None),
            (&[Lost, Lost, Silent], None),
            // The peer has as many spare ones as it takes.
            (&[Silent, Silent, Closed], None),
            (&[Lost, Lost, Closed], Some(false)),
            (&[Lost, Lost], Some(false)),
            (&[Lost, Closed, Lost], Some(true)),
            (&[Closed, Silent], Some(true)),
            (&[Closed, Closed, Silent], Some(true)),
        ] {
            let end = end_of(sockets, 2);
            let is_closed = end.map(|error| matches!(error, LinkError::Closed));
            assert_eq!(is_closed, closed);
        }
    }
}
