//! The traits that every transport implements, and what their calls return. Engines know links only
//! by them.

use std::ptr::NonNull;
use std::time::Duration;

use spark_ccl_compute::Helpers;

use crate::Wait;
use crate::memory::MemoryError;

/// The sizes that both ends of every link of a communicator agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Payload bytes of one slot; a multiple of 64.
    pub slot_bytes: usize,
    /// Slots per direction: how many messages can be committed before the receiver has to read one.
    pub slots: usize,
}

/// The next message.
#[derive(Debug, Clone, Copy)]
pub struct Arrival<'a> {
    /// The sender's tag.
    pub tag: u64,
    /// The payload, of any alignment; valid until [`LinkRx::release`].
    pub payload: &'a [u8],
}

/// The state of a link's rails: the paths, each between two ports, that share its messages. If a
/// rail has several queue pairs, each of them counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rails {
    /// Rails in use; 0 over shared memory and TCP, which do not count them.
    pub in_use: usize,
    /// How often a rail was dropped, because it failed at either end.
    pub dropped: u64,
    /// How often a dropped rail was put back into use.
    pub returned: u64,
}

/// A rail over which nothing comes back any more, although the peer's host is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SilentRail {
    /// Its interface and addresses.
    pub name: String,
    /// For how long.
    pub silence: Duration,
}

/// Why a link has ended, or refused a call.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LinkError {
    /// The peer closed its end (or died) and nothing is left to read.
    #[error("the connection was closed by the peer")]
    Closed,
    /// The operating system reported an error.
    #[error("{call}: {error}")]
    Os {
        /// The call that failed.
        call: &'static str,
        /// Its error.
        error: rustix::io::Errno,
    },
    /// A connection between two RDMA ports failed.
    #[error("RDMA {rail}: {problem}")]
    Rdma {
        /// The two ports of the rail.
        rail: String,
        /// What failed, and what to check.
        problem: String,
    },
    /// There is no memory for a message.
    #[error("{0}")]
    Memory(#[from] MemoryError),
    /// The link could not be set up.
    #[error("{0}")]
    Setup(String),
    /// The peer violated the protocol.
    #[error("protocol violation: {0}")]
    Protocol(String),
    /// The order of calls or the geometry does not allow this call. The link is unchanged.
    #[error("misuse of a link: {0}")]
    Misuse(String),
}

impl LinkError {
    /// Whether the peer may be gone: it has closed its end or died, or its connection was reset.
    ///
    /// # Example
    /// ```
    /// assert!(spark_ccl_transport::LinkError::Closed.peer_may_be_gone());
    /// ```
    pub fn peer_may_be_gone(&self) -> bool {
        let Self::Os { error, .. } = self else {
            return matches!(self, Self::Closed);
        };
        *error == rustix::io::Errno::CONNRESET
    }
}

/// The result of an attempt to receive a message without a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direct {
    /// The message was received.
    Done,
    /// Try again, with the same memory.
    NotYet,
    /// Not possible for this message or over this link: use a slot.
    Unable,
}

/// The result of an attempt to send messages without a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sending {
    /// This many bytes of the payload were sent: whole messages, at least one.
    Done(usize),
    /// Try again.
    NotYet,
    /// Not possible for these bytes or over this link: use a slot.
    Unable,
}

/// The longest message that can be lent. The bound lets its reader do other work between messages.
pub const LEND_MOST: usize = 1 << 20;

/// Over a link that may send bytes again, a step of up to this length is copied to slots, and a
/// longer one is lent. When a call ends, its last bytes are hardly ever acknowledged. If lent, they
/// must be copied then: after the kernel was asked in vain, and out of colder caches than before
/// they were sent.
const SLOTS_SUFFICE: usize = 512 << 10;

/// The memory that a link can lend to its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lends {
    /// None: all messages go through slots.
    Nothing,
    /// Any memory, in messages of up to [`LEND_MOST`] bytes. The peer's processor copies it.
    Anything,
    /// This memory, because it is registered, in messages of up to a slot's size. Devices copy it.
    Registered,
    /// Any memory, in messages of up to a slot's size, several at a time. They are sent from there,
    /// also again if they get lost.
    Slots,
}

impl Lends {
    /// Whether lending costs less than slots in a step that sends this many bytes, in one message
    /// or several.
    ///
    /// # Example
    /// ```
    /// use spark_ccl_transport::Lends;
    ///
    /// assert!(Lends::Registered.pays_for(64 << 10));
    /// assert!(!Lends::Slots.pays_for(64 << 10));
    /// assert!(Lends::Slots.pays_for(1 << 20));
    /// ```
    pub fn pays_for(self, bytes: usize) -> bool {
        match self {
            Self::Nothing => false,
            Self::Anything | Self::Registered => true,
            Self::Slots => bytes > SLOTS_SUFFICE,
        }
    }
}

/// The result of an attempt to lend a message's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lending {
    /// The payload is lent up to this many bytes, until [`LinkTx::has_returned`] returns true for
    /// this number or a later one.
    Lent {
        /// The number of the loan.
        loan: u64,
        /// The length of its messages: of all, or of as many as the link has room for.
        bytes: usize,
    },
    /// Try again.
    NotYet,
    /// Not possible for this message or over this link.
    Unable,
}

/// The result of an attempt to receive a lent message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Borrowing {
    /// This many bytes were received.
    Done(usize),
    /// There is no message yet.
    NotYet,
    /// The next message is not lent or has another tag, or the link does not lend.
    Unable,
}

/// The most parts of a [put](LinkTx::put).
pub const PUT_PARTS: usize = 5;

/// A range of a [put](LinkTx::put).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PutPart {
    /// The address of its first byte, in registered memory of this process.
    pub from: u64,
    /// Its length.
    pub bytes: u32,
    /// Which of the ranges that the peer has opened it goes to, counted from 0.
    pub range: usize,
    /// Where in that range it goes, in bytes.
    pub at: u64,
}

/// The shortest message whose slot is stored past the caches where the peer is
/// [far](LinkTx::is_far).
pub const FAR_STORES_LEAST: usize = 16 << 10;

/// The sending half of a link.
pub trait LinkTx: Send {
    /// Reserves a slot with room for `len` bytes (at most `slot_bytes`). `None`: not yet.
    ///
    /// Until [`commit`](Self::commit), another call returns the same slot.
    ///
    /// # Errors
    /// When the link has ended.
    fn reserve(&mut self, len: usize) -> Result<Option<&mut [u8]>, LinkError>;

    /// Sends the reserved slot. `len` must be the length that was reserved.
    ///
    /// # Errors
    /// When the link has ended, or nothing was reserved.
    fn commit(&mut self, len: usize, tag: u64) -> Result<(), LinkError>;

    /// Sends directly from `payload`, if that saves a copy, in messages of a slot's length, the
    /// last of which may be shorter. Each has the effect of reserving, filling and committing a
    /// slot.
    ///
    /// # Errors
    /// When the link has ended, or a slot is reserved.
    fn send_from(&mut self, payload: &[u8], tag: u64) -> Result<Sending, LinkError> {
        let _ = (payload, tag);
        Ok(Sending::Unable)
    }

    /// Whether the peer's core shares no cache with this one, so that long slots
    /// ([`FAR_STORES_LEAST`]) are better stored past the caches. The caller orders these
    /// stores before it [commits](Self::commit), by a fence where the processor needs one. It may
    /// change from one message to the next.
    fn is_far(&self) -> bool {
        false
    }

    /// How the `bytes` bytes at `start` can be lent.
    fn lends(&self, start: *const u8, bytes: usize) -> Lends {
        let _ = (start, bytes);
        Lends::Nothing
    }

    /// Sends a message without copying it, if that saves time: the receiver reads it where it lies,
    /// or over TCP the kernel does, and again if a packet is lost. [`lends`](Self::lends) tells how
    /// long it may be, and whether a longer payload goes as several messages, each but the last of
    /// a slot's size. Until it has returned, it may be [held back](Self::holds_back), because the
    /// peer may find that it cannot read it in place after all.
    ///
    /// # Errors
    /// When the link has ended, or a slot is reserved.
    ///
    /// # Safety
    /// The pointer is valid for reads of the payload by any thread until the payload has
    /// [returned](Self::has_returned), or the link is [withdrawn](Self::withdraw) or dropped. This
    /// holds while and after its owner writes there, too: the pointer is made from the one by which
    /// the owner writes, not from a reference that the write ends. The owner does not write there
    /// before the peer has received the payload.
    unsafe fn lend(&mut self, payload: NonNull<[u8]>, tag: u64) -> Result<Lending, LinkError> {
        let _ = (payload, tag);
        Ok(Lending::Unable)
    }

    /// Whether the peer has finished reading the loan with this number, or the link has a copy.
    ///
    /// # Errors
    /// When the link has ended.
    fn has_returned(&mut self, loan: u64) -> Result<bool, LinkError> {
        let _ = loan;
        Ok(true)
    }

    /// Describes ranges of registered memory of this process, each an address and a length, to the
    /// peer, which [takes](Self::take_opening) this in order to [put](Self::put) something there.
    /// Empty if a range is not registered; `None` if links of this kind put nothing.
    fn opening(&self, ranges: &[(u64, usize)]) -> Option<Vec<u8>> {
        let _ = ranges;
        None
    }

    /// Takes the peer's [`opening`](Self::opening), which is not empty.
    ///
    /// # Errors
    /// When no peer describes ranges like this.
    fn take_opening(&mut self, told: &[u8]) -> Result<(), LinkError> {
        let _ = told;
        Err(LinkError::Misuse("this link puts nothing".to_owned()))
    }

    /// Begins to copy up to [`PUT_PARTS`] ranges into the memory that the peer has opened. Each
    /// becomes visible there after all of those before it: a part of one aligned word can be the
    /// flag that says so. The peer does nothing for it. Returns the put's number; `None`: not yet.
    ///
    /// The put of a rail that fails is done again by another one, once nothing more can come by the
    /// first one. So the peer may get the same bytes again, until the put has
    /// [ended](Self::ended_put) here.
    ///
    /// # Safety
    /// Nothing writes the parts until the put has ended, or the link is
    /// [withdrawn](Self::withdraw) or dropped.
    ///
    /// # Errors
    /// When the link has ended, or the parts are not registered here or not opened by the peer.
    unsafe fn put(&mut self, parts: &[PutPart]) -> Result<Option<u64>, LinkError> {
        let _ = parts;
        Err(LinkError::Misuse("this link puts nothing".to_owned()))
    }

    /// A put that has ended since the last call: the peer has all of it, and nothing reads its
    /// parts any more. Returns each once, in any order. Only the receiving half looks for news.
    fn ended_put(&mut self) -> Option<u64> {
        None
    }

    /// Ends the link for both halves: takes back all loans, ends all puts in both directions, stops
    /// receiving into the caller's memory, and abandons messages in flight. A peer that reads from
    /// the link afterwards finds it ended.
    fn withdraw(&mut self) {}

    /// The state of the link's rails.
    fn rails(&self) -> Rails {
        Rails::default()
    }

    /// The rails over which nothing comes back any more, as far as the link knows.
    fn silent_rails(&self) -> Vec<SilentRail> {
        Vec::new()
    }

    /// Whether committed bytes are still held back, so that only [`flush`](Self::flush) sends them.
    fn holds_back(&self) -> bool;

    /// Sends what is held back; `true` if nothing is held back any more.
    ///
    /// # Errors
    /// When the link has ended.
    fn flush(&mut self) -> Result<bool, LinkError>;

    /// Adds to `wait` the events that let held-back bytes be sent. The sender's other events end a
    /// wait for which the receiving half is [armed](LinkRx::arm).
    fn watch(&self, wait: &mut Wait) {
        let _ = wait;
    }
}

/// The receiving half of a link.
pub trait LinkRx: Send {
    /// The next message. `None`: not yet. Returns the same message until
    /// [`release`](Self::release).
    ///
    /// # Errors
    /// When the link has ended and every message was read.
    fn peek(&mut self) -> Result<Option<Arrival<'_>>, LinkError>;

    /// The tag of the next message. Unlike [`peek`](Self::peek), it leaves a lent one to be
    /// [borrowed](Self::borrow).
    ///
    /// # Errors
    /// As for `peek`.
    fn next_tag(&mut self) -> Result<Option<u64>, LinkError> {
        Ok(self.peek()?.map(|arrival| arrival.tag))
    }

    /// Whether [`peek`](Self::peek) would return something, including an error, or a lent message
    /// whose contents have not been requested.
    fn has_news(&mut self) -> bool {
        !matches!(self.peek(), Ok(None))
    }

    /// Receives a message with this tag and the length of `payload` directly into `payload`, if
    /// that saves a copy. It has the effect of peeking, copying and releasing. [`Direct::Unable`]
    /// if the next message is a different one. Once begun, it must be completed before the link can
    /// be used for anything else.
    ///
    /// # Errors
    /// When the link has ended before the message was complete.
    fn receive_into(&mut self, payload: &mut [u8], tag: u64) -> Result<Direct, LinkError> {
        let _ = (payload, tag);
        Ok(Direct::Unable)
    }

    /// Receives the next bytes of a lent message with this tag, as many as fit into `room`. Once
    /// begun, the half can be used for nothing else until the whole message has been received. Each
    /// further call passes the `room` for the missing bytes of this message, and of the messages
    /// that follow it. If processors copy it, the `helpers` share the work.
    ///
    /// # Safety
    /// From the first call on, a device may be writing to a `room` in
    /// [registered](crate::rdma::Registry) memory. That stays valid, and nothing else accesses it,
    /// until its bytes have been received, or until the link is [withdrawn](LinkTx::withdraw) or
    /// both halves of it are dropped.
    ///
    /// # Errors
    /// When the link has ended.
    unsafe fn borrow(
        &mut self,
        room: &mut [u8],
        tag: u64,
        helpers: Option<&Helpers>,
    ) -> Result<Borrowing, LinkError> {
        let _ = (room, tag, helpers);
        Ok(Borrowing::Unable)
    }

    /// Whether the peer still lends all that it has lent or announced as readable. If so, all that
    /// was read of it until now is valid. Always false over links that do not share memory.
    fn still_lends(&self) -> bool {
        false
    }

    /// Returns the slot of the message last peeked to the sender. Does nothing if none was peeked.
    fn release(&mut self);

    /// Prepares a wait. Check the link again afterwards: whatever arrives after that check ends the
    /// wait, and so does progress of the peer for the link's sending half. A link that cannot
    /// promise this makes the wait [blind](Wait::is_blind).
    fn arm(&mut self, wait: &mut Wait) {
        wait.be_blind();
    }

    /// Adds to `wait` the events that bring the messages that were looked for since
    /// [`arm`](Self::arm) and not found.
    fn watch(&self, wait: &mut Wait) {
        let _ = wait;
    }

    /// Ends the wait.
    fn disarm(&mut self) {}
}
