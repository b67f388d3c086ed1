//! The slots of a lane, their records, and its counters.

/// The counters of a lane, each alone in its line. An outbox has the first three, an inbox the
/// others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counter {
    /// Slots that the kernel has filled.
    Published,
    /// Slots whose writes have all completed.
    Sent,
    /// Slots that the peer has consumed.
    Credit,
    /// Slots that the kernel has consumed.
    Consumed,
    /// Slots of all calls that have begun.
    Wanted,
}

/// A slot of a lane, by its number in the lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// The lane.
    pub lane: usize,
    /// Counted from 1.
    pub number: u64,
}

/// Describes the payload of a slot, beside which it stands. The receiver compares it before it uses
/// a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Record {
    /// The number of the call, counted from 0.
    pub call: u64,
    /// The call's signature.
    pub words: [u64; 2],
    /// The bytes of the call's buffers.
    pub total: u64,
    /// Where the payload belongs there.
    pub start: u64,
    /// The bytes of the payload.
    pub length: u64,
}

/// Where the slots of the boxes of a pair are, the same at both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// In the boxes, in memory of the host.
    Host,
    /// In memory of the GPU. There the kernel fills payloads of the outbox, and polls flags of the
    /// inbox. The boxes keep a head for each slot: of an outbox, the kernel describes the slot
    /// there; of an inbox, a copy of the head for the proxy.
    Device,
}
