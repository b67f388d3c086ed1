//! The addresses of local and remote memory in work requests.

use std::fmt;

use crate::raw;

/// A piece of local registered memory that a work request reads or writes.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Piece(pub(crate) raw::ibv_sge);

impl Piece {
    /// The `bytes` bytes at `addr`, in the region with the local key `lkey`.
    pub const fn new(addr: u64, bytes: u32, lkey: u32) -> Piece {
        Piece(raw::ibv_sge {
            addr,
            length: bytes,
            lkey,
        })
    }

    /// Its length in bytes.
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

/// The start of the peer's memory that a work request reads or writes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Remote {
    /// The address in the peer's region.
    pub addr: u64,
    /// The region's remote key.
    pub rkey: u32,
}

impl Remote {
    /// The address `bytes` bytes further on, in the same region.
    #[must_use]
    pub const fn offset(self, bytes: u64) -> Remote {
        Remote {
            addr: self.addr.wrapping_add(bytes),
            rkey: self.rkey,
        }
    }
}
