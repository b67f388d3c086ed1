//! The access that a memory region allows.

use std::ops::BitOr;

use crate::raw;

/// The access that a memory region allows. The device may always read it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Access(raw::ibv_access_flags);

impl Access {
    /// The device may read it for requests of this process.
    pub const LOCAL_READ: Access = Access(0);
    /// The device may write it, for receives, reads and atomics of this process.
    pub const LOCAL_WRITE: Access = Access(raw::IBV_ACCESS_LOCAL_WRITE);
    /// Peers may write it.
    pub const REMOTE_WRITE: Access =
        Access(raw::IBV_ACCESS_REMOTE_WRITE | raw::IBV_ACCESS_LOCAL_WRITE);
    /// Peers may read it.
    pub const REMOTE_READ: Access = Access(raw::IBV_ACCESS_REMOTE_READ);
    /// Peers may change it by atomics.
    pub const REMOTE_ATOMIC: Access =
        Access(raw::IBV_ACCESS_REMOTE_ATOMIC | raw::IBV_ACCESS_LOCAL_WRITE);
    /// Writes may become visible in any order, but all are visible once their completion is. Must
    /// not be used for memory that is polled. Devices that lack it ignore it.
    pub const RELAXED_ORDERING: Access = Access(raw::IBV_ACCESS_RELAXED_ORDERING);
    /// On-demand paging: pages are not pinned, but fetched when the device needs them, if the
    /// device supports this.
    pub const ON_DEMAND: Access = Access(raw::IBV_ACCESS_ON_DEMAND);

    /// Whether it includes all of `other`.
    pub fn contains(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }

    pub(crate) fn bits(self) -> u32 {
        self.0
    }
}

impl BitOr for Access {
    type Output = Access;

    fn bitor(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}
