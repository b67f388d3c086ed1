//! A rank's knowledge of a peer's calls.

use crate::Record;

/// A slot of a peer, and the call that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard {
    /// Whether it is a slot of packets.
    pub is_of_packets: bool,
    /// The slot's number in its lane, or among the slots of packets.
    pub number: u64,
    /// The slot's record, which identifies its call.
    pub record: Record,
}
