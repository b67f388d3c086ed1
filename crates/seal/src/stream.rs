//! A socket with the seals of both its directions.

use std::ops::Deref;

use socket2::Socket;
use spark_ccl_fork::Unshared;

use crate::{Opener, Sealer};

/// The seals of both directions, at one end of a stream.
#[derive(Debug)]
pub struct Seals {
    /// For what this end sends.
    pub sealer: Sealer,
    /// For what the other end sends.
    pub opener: Opener,
}

impl Seals {
    /// The seals of one end of a stream. The other end swaps the keys.
    pub fn new(to_send: &[u8; 32], to_receive: &[u8; 32]) -> Self {
        Self {
            sealer: Sealer::new(to_send),
            opener: Opener::new(to_receive),
        }
    }
}

/// An authenticated stream to another rank.
#[derive(Debug)]
pub struct Stream {
    /// The socket. It is blocking, and has no timeouts set.
    pub socket: Unshared<Socket>,
    /// `None` where only the kernel is between the ends: over Unix sockets, and within a process.
    pub seals: Option<Seals>,
}

/// A stream within a host, which needs no seals.
impl From<Unshared<Socket>> for Stream {
    fn from(socket: Unshared<Socket>) -> Self {
        Self {
            socket,
            seals: None,
        }
    }
}

impl Deref for Stream {
    type Target = Socket;

    fn deref(&self) -> &Socket {
        &self.socket
    }
}
