//! What moves slots from an outbox to the peer's inbox.

use crate::{Error, Slot};

/// One end of what carries slots between two ranks, both ways. It is one thread's.
///
/// A carrier moves whole slots, in any order: a slot's flag is set after all of the slot is there,
/// and slots may overtake each other. `conformance.rs` tests what is said here.
pub trait Carrier: Send {
    /// Begins to move a slot's record and payload, of this many bytes, to the slot of the same
    /// number in the peer's inbox, and then to set its flag there; with it, it tells the peer how
    /// many slots of the lane were consumed here, in all. Returns whether it has: not, where there
    /// is no room now. Never waits.
    ///
    /// # Safety
    /// The slot must have been published, and is not written before it was
    /// [`completed`](Self::completed). What was in the one at the peer must have been consumed.
    ///
    /// # Errors
    /// The peer cannot be reached any more.
    unsafe fn post(&mut self, slot: Slot, payload: usize, consumed: u64) -> Result<bool, Error>;

    /// A posted slot of which nothing is read any more, on any of the carrier's ways; each once, in
    /// any order. Moves on what is under way, also what the peer sends.
    ///
    /// # Errors
    /// The peer cannot be reached any more.
    fn completed(&mut self) -> Result<Option<Slot>, Error>;

    /// Tells the peer the same where no slot goes there. Returns whether it has, as
    /// [`post`](Self::post) does; a later total may overtake it, or replace it.
    ///
    /// # Errors
    /// The peer cannot be reached any more.
    fn give_credit(&mut self, lane: usize, total: u64) -> Result<bool, Error>;

    /// How many slots of a lane the peer has consumed: one of the totals that it has told, or 0; in
    /// the end the last one, if it tells no more. Looks at no peer: [`completed`](Self::completed)
    /// does.
    fn credit(&mut self, lane: usize) -> u64;

    /// Begins to move a slot of packets, whose words these are, into the peer's inbox: slots of
    /// packets come in their order. Returns whether it has, as [`post`](Self::post) does; the words
    /// are not used after that.
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
