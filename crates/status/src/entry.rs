//! A recorded operation. Plain data: knows no communicator and no format.

use spark_ccl_types::Signature;

/// An operation of a communicator, as it is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The number of the record within its communicator, from 0.
    pub record: u64,
    /// Its number: for a collective, among the collectives; for a message, among those with the
    /// same peer in the same direction.
    pub sequence: u64,
    /// The other rank of a message; `None` for a collective.
    pub peer: Option<Peer>,
    /// The operation, as ranks compare it.
    pub signature: Signature,
    /// Elements that are read.
    pub input: u64,
    /// Elements that are written.
    pub output: u64,
    /// When it was called: nanoseconds since 1970.
    pub called: u64,
    /// When it was done, or was seen to be; `None` if it is not.
    pub completed: Option<u64>,
}

/// The other rank of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Peer {
    /// The message goes to this rank.
    To(u32),
    /// It comes from this rank.
    From(u32),
}

impl Entry {
    /// Its duration in nanoseconds; `None` if it is not done.
    pub fn duration(&self) -> Option<u64> {
        Some(self.completed?.saturating_sub(self.called))
    }

    /// The bytes of the vector, or of one block if each rank has a block.
    pub fn bytes(&self) -> u64 {
        let size = self.signature.dtype.size() as u64;
        let elements = match self.signature.count {
            // The signature has no count where counts differ between ranks.
            0 => self.input.max(self.output),
            count => count,
        };
        elements.saturating_mul(size)
    }
}
