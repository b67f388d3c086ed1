//! The traits that every transport implements.

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

    /// Whether committed bytes of the channel are still held back: only [`flush`](Self::flush) moves
    /// them on.
    fn holds_back(&self, channel: usize) -> bool;

    /// Moves on what was committed and is still held back; `true` when nothing is.
    ///
    /// # Errors
    /// When the link has ended.
    fn flush(&mut self) -> Result<bool, LinkError>;
}

/// The receiving half of a link.
pub trait LinkRx: Send {
    /// The next message of the channel, or `None`: not yet. Repeats itself until [`release`](Self::release).
    ///
    /// # Errors
    /// When the link has ended and every message was read.
    fn peek(&mut self, channel: usize) -> Result<Option<Arrival<'_>>, LinkError>;

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

    /// Gives the slot of the message last peeked back to the sender; nothing where none was.
    fn release(&mut self, channel: usize);
}
