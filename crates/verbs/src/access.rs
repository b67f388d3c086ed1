use std::ops::BitOr;

use crate::raw;

/// Who may do what to a memory region. The device may always read it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Access(raw::ibv_access_flags);

impl Access {
    /// The device may read it for requests of this process.
    pub const LOCAL_READ: Access = Access(0);
    /// The device may write it: receives, reads and atomics of this process end in it.
    pub const LOCAL_WRITE: Access = Access(raw::IBV_ACCESS_LOCAL_WRITE);
    /// Peers may write it.
    pub const REMOTE_WRITE: Access =
        Access(raw::IBV_ACCESS_REMOTE_WRITE | raw::IBV_ACCESS_LOCAL_WRITE);
    /// Peers may read it.
    pub const REMOTE_READ: Access = Access(raw::IBV_ACCESS_REMOTE_READ);
    /// Peers may change it by atomics.
    pub const REMOTE_ATOMIC: Access =
        Access(raw::IBV_ACCESS_REMOTE_ATOMIC | raw::IBV_ACCESS_LOCAL_WRITE);
    /// Writes may become visible in any order; they are all visible once their completion is.
    /// Never for memory that is polled. Ignored by devices that cannot.
    pub const RELAXED_ORDERING: Access = Access(raw::IBV_ACCESS_RELAXED_ORDERING);
    /// Pages are not pinned, but fetched as the device needs them, where it can.
    pub const ON_DEMAND: Access = Access(raw::IBV_ACCESS_ON_DEMAND);

    /// Whether it includes all of another.
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
