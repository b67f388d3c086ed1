//! What a rank has heard of a peer's calls.

use crate::Record;

/// What a slot of a peer's says of its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard {
    /// Whether it is one of packets.
    pub is_of_packets: bool,
    /// The slot's number in its lane, or among those of packets.
    pub number: u64,
    /// Which call the slot is of.
    pub record: Record,
}
