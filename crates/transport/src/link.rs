//! The traits that every transport implements.

use crate::Wait;
use crate::memory::MemoryError;

/// The sizes that both ends of every link of a communicator agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Payload bytes of one slot; a multiple of 64.
    pub slot_bytes: usize,
    /// Slots per channel and direction: so many committed messages are taken without any help of
    /// the receiver.
    pub slots: usize,
    /// Number of channels.
    pub channels: usize,
}

/// A message at the head of a channel.
#[derive(Debug, Clone, Copy)]
pub struct Arrival<'a> {
    /// The sender's tag.
    pub tag: u64,
    /// The payload, of any alignment; valid until [`LinkRx::release`].
    pub payload: &'a [u8],
}

/// How it goes with the rails of a link: the paths, each between two ports, that share its messages. Where
/// a rail has several queue pairs, each of them counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rails {
    /// Those that carry; none over shared memory and TCP, which have no rails that come and go.
    pub in_use: usize,
    /// How often one was dropped, because it failed at either end.
    pub dropped: u64,
    /// How often one that was dropped has come back.
    pub returned: u64,
}

/// What ends a link.
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
        /// The ports that it joins.
        rail: String,
        /// What failed, and what to check.
        problem: String,
    },
    /// There is no memory for a message on its way.
    #[error("{0}")]
    Memory(#[from] MemoryError),
    /// It could not be made.
    #[error("{0}")]
    Setup(String),
    /// The peer sent something that the protocol does not allow.
    #[error("protocol violation: {0}")]
    Protocol(String),
    /// A call that the order of calls or the geometry does not allow; the link is as it was.
    #[error("misuse of a link: {0}")]
    Misuse(String),
}

/// How an attempt to move a message without a slot went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direct {
    /// The message is on its way, or has arrived.
    Done,
    /// Ask again, with the same memory.
    NotYet,
    /// Not this message, or not over this link; what it needs is a slot.
    Unable,
}

/// The longest message that can be lent: its reader looks around before the next one.
pub const LEND_MOST: usize = 1 << 20;

/// What a link can lend to its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lends {
    /// Nothing: all goes through slots.
    Nothing,
    /// Any memory, in messages of up to [`LEND_MOST`]. The peer's processor copies it.
    Anything,
    /// This memory, because it is registered, in messages of up to a slot's bytes. Devices copy it.
    Registered,
}

/// How an attempt to lend a message's payload went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lending {
    /// It is lent until [`LinkTx::has_returned`] says so of this number, or any later one.
    Lent(u64),
    /// Ask again.
    NotYet,
    /// Not this message, or not over this link.
    Unable,
}

/// How an attempt to receive a lent message went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Borrowing {
    /// It is received; so many bytes.
    Done(usize),
    /// There is no message yet.
    NotYet,
    /// The next message is not lent, or another one; or the link lends nothing.
    Unable,
}

/// The sending half of a link.
pub trait LinkTx: Send {
    /// A slot with room for `len` bytes (at most `slot_bytes`), or `None`: not yet.
    ///
    /// Asking again before [`commit`](Self::commit) lends the same slot.
    ///
    /// # Errors
    /// When the link has ended.
    fn reserve(&mut self, channel: usize, len: usize) -> Result<Option<&mut [u8]>, LinkError>;

    /// Sends the first `len` bytes of the reserved slot (the `len` that was reserved).
    ///
    /// # Errors
    /// When the link has ended, or nothing was reserved.
    fn commit(&mut self, channel: usize, len: usize, tag: u64) -> Result<(), LinkError>;

    /// Sends a message from where it lies, where that saves a copy: like reserving, filling and
    /// committing a slot.
    ///
    /// # Errors
    /// When the link has ended, or a slot is reserved.
    fn send_from(&mut self, channel: usize, payload: &[u8], tag: u64) -> Result<Direct, LinkError> {
        let _ = (channel, payload, tag);
        Ok(Direct::Unable)
    }

    /// What can be lent of `bytes` bytes from `start` on.
    fn lends(&self, start: *const u8, bytes: usize) -> Lends {
        let _ = (start, bytes);
        Lends::Nothing
    }

    /// Sends a message that the peer reads where it lies, if it can and that saves a copy. How long it may
    /// be, [`lends`](Self::lends) says. Until it has returned it may be [held back](Self::holds_back): the
    /// peer may find that it cannot read it after all.
    ///
    /// # Errors
    /// When the link has ended, or a slot is reserved.
    ///
    /// # Safety
    /// The payload stays there, and as it is, until it has [returned](Self::has_returned), or until the link
    /// is [withdrawn](Self::withdraw) or dropped.
    unsafe fn lend(
        &mut self,
        channel: usize,
        payload: &[u8],
        tag: u64,
    ) -> Result<Lending, LinkError> {
        let _ = (channel, payload, tag);
        Ok(Lending::Unable)
    }

    /// Whether the peer has read what was lent under this number.
    ///
    /// # Errors
    /// When the link has ended.
    fn has_returned(&mut self, channel: usize, loan: u64) -> Result<bool, LinkError> {
        let _ = (channel, loan);
        Ok(true)
    }

    /// Takes back what is lent, stops what is being received into memory by both halves, and gives up what
    /// is on its way, at the price of the link: a peer that reads it from now on finds the link ended.
    fn withdraw(&mut self) {}

    /// How it goes with the link's rails.
    fn rails(&self) -> Rails {
        Rails::default()
    }

    /// Whether committed bytes of the channel are still held back: only [`flush`](Self::flush) moves
    /// them on.
    fn holds_back(&self, channel: usize) -> bool;

    /// Moves on what was committed and is still held back; `true` when nothing is.
    ///
    /// # Errors
    /// When the link has ended.
    fn flush(&mut self) -> Result<bool, LinkError>;

    /// Adds to `wait` what lets bytes go that are held back. Everything else that a sender waits for
    /// ends a wait for which the receiving half is [armed](LinkRx::arm).
    fn watch(&self, wait: &mut Wait) {
        let _ = wait;
    }
}

/// The receiving half of a link.
pub trait LinkRx: Send {
    /// The next message of the channel, or `None`: not yet. Repeats itself until [`release`](Self::release).
    ///
    /// # Errors
    /// When the link has ended and every message was read.
    fn peek(&mut self, channel: usize) -> Result<Option<Arrival<'_>>, LinkError>;

    /// Whether there is something to [`peek`](Self::peek) at, be it an error or a lent message that has
    /// not been asked for.
    fn has_news(&mut self, channel: usize) -> bool {
        !matches!(self.peek(channel), Ok(None))
    }

    /// Receives a message of that tag and the length of `payload` to where it shall lie, where that
    /// saves a copy: like peeking, copying and releasing. [`Direct::Unable`] where the next message
    /// is another one. Once begun, nothing else can be done on the channel.
    ///
    /// # Errors
    /// When the link has ended before the message was complete.
    fn receive_into(
        &mut self,
        channel: usize,
        payload: &mut [u8],
        tag: u64,
    ) -> Result<Direct, LinkError> {
        let _ = (channel, payload, tag);
        Ok(Direct::Unable)
    }

    /// Receives what comes next of a message of that tag that is lent: as much as there is room for.
    /// Once begun, nothing else can be done on the channel until all of it is received: `room` begins
    /// there then, for this message and those that follow it, and is left alone. (A device may be
    /// writing to registered memory from the first call on, until the link is [given up](LinkTx::withdraw).)
    ///
    /// # Errors
    /// When the link has ended.
    fn borrow(
        &mut self,
        channel: usize,
        room: &mut [u8],
        tag: u64,
    ) -> Result<Borrowing, LinkError> {
        let _ = (channel, room, tag);
        Ok(Borrowing::Unable)
    }

    /// Whether the peer still stands by what it has lent, or has said by messages to be ready to be read in
    /// registered memory: what was read of that until now is then what the peer meant. Never over links that do
    /// not share memory.
    fn still_lends(&self) -> bool {
        false
    }

    /// Gives the slot of the message last peeked back to the sender; nothing where none was.
    fn release(&mut self, channel: usize);

    /// Prepares a wait: from the next look at a channel on, what was not there then ends it; so does what
    /// the peer does for the link's sending half. For links that cannot do that, the wait is blind.
    fn arm(&mut self, wait: &mut Wait) {
        wait.be_blind();
    }

    /// Adds to `wait` what brings the messages that were looked for since [`arm`](Self::arm), and not
    /// found.
    fn watch(&self, wait: &mut Wait) {
        let _ = wait;
    }

    /// The wait is over.
    fn disarm(&mut self) {}
}
