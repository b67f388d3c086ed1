//! A carrier over a link. A slot is the messages of a credit, its record and its payload, one after
//! the other; a credit with which no slot goes is a message of its own. The link keeps their order.
//!
//! A link over RDMA puts slots, except for slots of packets, straight into the peer's inbox: the
//! same bytes, and then the slot's flag. First, each end tells the other by a message, its
//! *opening*, where its inbox is. Slots are put both ways or neither: an end whose boxes are not
//! registered sends an empty opening. The peer's processor has no part in a put. This carrier looks
//! into the inbox to learn what has come. Slots on a GPU can only be put.

mod heard;
mod incoming;
mod outgoing;
mod tag;
#[cfg(test)]
pub(crate) mod tests;

pub use heard::Heard;
use incoming::Incoming;
use outgoing::Outgoing;
use spark_ccl_transport::{LinkError, LinkRx, LinkTx};

use crate::{Carrier, Error, PostBox, Slot};

/// Carries slots as messages of a link that nothing else uses.
pub struct Linked {
    outgoing: Outgoing,
    incoming: Incoming,
    may_post: MayPost,
    /// Why the carrier does nothing any more.
    failed: Option<Error>,
}

/// Whether slots that kernels have published may go to the peer.
type MayPost = Box<dyn Fn() -> bool + Send>;

impl Linked {
    /// One end of a carrier over both halves of a link: from this rank's outbox to the peer, and
    /// from the peer into this rank's inbox. Messages have up to `part` bytes, as the link's slots
    /// have.
    ///
    /// # Errors
    /// The boxes are too large for the tags of messages, or have slots on a GPU, and the link's
    /// devices do not put slots from there.
    ///
    /// # Safety
    /// As long as it lives, it is the only carrier of these boxes: no other one writes the inbox,
    /// or completes slots of the outbox.
    pub unsafe fn new(
        (tx, rx): (Box<dyn LinkTx>, Box<dyn LinkRx>),
        part: usize,
        outbox: PostBox,
        inbox: PostBox,
    ) -> Result<Self, Error> {
        let shape = outbox.shape();
        if shape.lanes() > tag::MOST_LANES || shape.payload() > tag::MOST_BYTES {
            return Err(Error::Shape {
                lanes: shape.lanes(),
                depth: shape.depth(),
                payload: shape.payload(),
            });
        }
        let outgoing = Outgoing::new(tx, part, outbox, &inbox)?;
        Ok(Self {
            incoming: Incoming::new(rx, part, inbox, outgoing.opens()),
            outgoing,
            may_post: Box::new(|| true),
            failed: None,
        })
    }

    /// Has the carrier ask `may_post` before it takes a slot. After a failure, a kernel may publish
    /// slots that are computed from a result that is not there.
    #[must_use]
    pub fn only_while(mut self, may_post: impl Fn() -> bool + Send + 'static) -> Self {
        self.may_post = Box::new(may_post);
        self
    }

    /// Whether slots go as messages: over TCP and shm, or where an end puts no slots.
    pub fn only_sends(&self) -> bool {
        self.outgoing.only_sends()
    }

    /// How many rails the link has dropped so far, also if they have come back.
    pub fn dropped_rails(&self) -> u64 {
        self.outgoing.dropped()
    }

    /// Ends the link at once, without waiting for slots that are on their way.
    pub fn withdraw(&mut self) {
        self.outgoing.withdraw();
    }

    /// How many slots of packets have come.
    pub fn packets(&self) -> u64 {
        self.incoming.packets()
    }

    /// How many slots of a lane have come, as far as was looked.
    pub fn seen(&self, lane: usize) -> u64 {
        self.incoming.come(lane)
    }

    /// The last slot of the peer's first lane, or of its packets, that has come.
    pub fn heard(&self) -> Option<Heard> {
        self.incoming.heard()
    }

    /// Forgets [`heard`](Self::heard): the ranks count their calls anew.
    pub fn forget_heard(&mut self) {
        self.incoming.forget_heard();
    }

    /// Whether everything that this carrier was given has been passed to the operating system, and
    /// all puts have ended: they may have to be done again.
    pub fn is_flushed(&self) -> bool {
        self.outgoing.is_flushed()
    }

    /// Moves slots and credits on. If the link has ended, first takes all that arrived before.
    fn advance(&mut self) -> Result<(), Error> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.outgoing.advance();
        let advanced = self.incoming.advance();
        let opened = match self.incoming.take_opening() {
            Some(told) => self.outgoing.hear_opening(&told),
            None => Ok(()),
        };
        let ended = match opened.and(advanced) {
            Ok(true) => return Ok(()),
            Ok(false) => self.outgoing.ended().cloned(),
            Err(error) => Some(error),
        };
        self.failed = ended;
        self.failed.clone().map_or(Ok(()), Err)
    }
}

impl Carrier for Linked {
    unsafe fn post(&mut self, slot: Slot, payload: usize, consumed: u64) -> Result<bool, Error> {
        if !(self.may_post)() {
            return Ok(false);
        }
        // SAFETY: the caller has published the slot, and the kernel fills it again only after
        // `completed` has returned it. That is after the link has taken all of it, or the put has
        // ended.
        Ok(unsafe { self.outgoing.post(slot, payload, consumed) })
    }

    fn completed(&mut self) -> Result<Option<Slot>, Error> {
        // Reads the socket only after all known completions are returned.
        let known = self.outgoing.completed();
        if known.is_some() {
            return Ok(known);
        }
        // One look may find completions and the link's end. The end waits for the next call.
        let advanced = self.advance();
        match self.outgoing.completed() {
            None => advanced.map(|()| None),
            found => Ok(found),
        }
    }

    /// Looks for slots that were put into the inbox.
    fn come(&mut self, lane: usize) -> Result<u64, Error> {
        self.incoming.look_at(lane)?;
        Ok(self.incoming.come(lane))
    }

    fn give_credit(&mut self, lane: usize, total: u64) -> Result<bool, Error> {
        Ok(self.outgoing.give_credit(lane, total))
    }

    fn credit(&mut self, lane: usize) -> u64 {
        self.incoming.credit(lane)
    }

    fn post_packets(&mut self, number: u64, words: &[u64]) -> Result<bool, Error> {
        Ok((self.may_post)() && self.outgoing.post_packets(number, words))
    }

    /// Reads no socket: [`completed`](Self::completed) has just done so.
    fn health(&mut self) -> Result<(), Error> {
        self.failed.clone().map_or(Ok(()), Err)
    }
}

impl std::fmt::Debug for Linked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Linked")
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

impl From<LinkError> for Error {
    fn from(error: LinkError) -> Self {
        if error.peer_may_be_gone() {
            return Self::Gone;
        }
        Self::Link {
            problem: error.to_string(),
        }
    }
}
