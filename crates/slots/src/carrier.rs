//! The trait of carriers, which move slots from an outbox to the peer's inbox.

use crate::{Error, Slot};

/// One end of a carrier, which moves slots between two ranks, both ways. One thread uses it.
///
/// A carrier moves whole slots, in any order: a slot's flag is set after all of the slot is there,
/// and slots may overtake each other. `conformance.rs` tests this contract.
pub trait Carrier: Send {
    /// Begins to move a slot's record and payload, of this many bytes, to the slot of the same
    /// number in the peer's inbox, and then to set its flag there. Also tells the peer `consumed`:
    /// how many slots of the lane were consumed here, in all. Returns false if there is no room
    /// now. Never waits. No more than [`come`](Self::come) were consumed.
    ///
    /// # Safety
    /// The slot must not be written from now on, before it was [`completed`](Self::completed). The
    /// peer must have consumed the slot that was in its place before.
    ///
    /// # Errors
    /// The peer cannot be reached any more.
    unsafe fn post(&mut self, slot: Slot, payload: usize, consumed: u64) -> Result<bool, Error>;

    /// A posted slot that nothing of the carrier reads any more. Returns each slot once, in any
    /// order. Moves on everything that is under way, in both directions.
    ///
    /// # Errors
    /// The peer cannot be reached any more.
    fn completed(&mut self) -> Result<Option<Slot>, Error>;

    /// How many slots of a lane have come. May lag behind a kernel that has seen a slot: credits
    /// wait for this, and the peer replaces a slot only after a credit. So each slot is counted
    /// before.
    ///
    /// # Errors
    /// The peer has put a slot where none may be.
    fn come(&mut self, lane: usize) -> Result<u64, Error> {
        let _ = lane;
        Ok(u64::MAX)
    }

    /// Tells the peer `total`: how many slots of the lane were consumed here, without a slot; no
    /// more than [`come`](Self::come). Returns false if there is no room now. A later total may
    /// overtake this one, or replace it.
    ///
    /// # Errors
    /// The peer cannot be reached any more.
    fn give_credit(&mut self, lane: usize, total: u64) -> Result<bool, Error>;

    /// How many slots of a lane the peer has consumed: 0, or one of the totals that it has told; in
    /// the end the last one. Only [`completed`](Self::completed) looks for news of the peer.
    fn credit(&mut self, lane: usize) -> u64;

    /// Begins to move a slot of packets with these words into the peer's inbox. Slots of packets
    /// arrive in their order. Returns false if there is no room now. The words are not used after
    /// this call.
    ///
    /// # Errors
    /// The peer cannot be reached any more.
    fn post_packets(&mut self, number: u64, words: &[u64]) -> Result<bool, Error>;

    /// Whether the peer can be reached.
    ///
    /// # Errors
    /// It cannot.
    fn health(&mut self) -> Result<(), Error>;
}
