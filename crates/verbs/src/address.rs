//! Where the memory is that work requests are about.

use std::fmt;

use crate::raw;

/// A piece of registered memory that a work request here reads or writes.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Piece(pub(crate) raw::ibv_sge);

impl Piece {
    /// Memory from `addr` on, in the region whose key for requests of this process is `lkey`.
    pub const fn new(addr: u64, bytes: u32, lkey: u32) -> Piece {
        Piece(raw::ibv_sge {
            addr,
            length: bytes,
            lkey,
        })
    }

    /// Its bytes.
    pub const fn bytes(&self) -> u32 {
        self.0.length
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let raw::ibv_sge { addr, length, lkey } = self.0;
        write!(f, "Piece({addr:#x}, {length} bytes, lkey {lkey:#x})")
    }
}

/// Where memory of a peer starts that a work request reads or writes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Remote {
    /// The address, as the peer's region knows it.
    pub addr: u64,
    /// The region's key for requests of peers.
    pub rkey: u32,
}

impl Remote {
    /// So many bytes further on.
    #[must_use]
    pub const fn offset(self, bytes: u64) -> Remote {
        Remote {
            addr: self.addr.wrapping_add(bytes),
            rkey: self.rkey,
        }
    }
}
