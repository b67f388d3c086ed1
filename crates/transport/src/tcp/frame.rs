//! A message as its sender keeps it: a header and a payload, in a buffer of the link or lent.
//!
//! Memory that is lent holds the payload until the peer has it. Then the owner may change it, while
//! the sender does not know yet. If the message is sent again, the peer passes over it.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::slice;

use super::buffers::{FRAME, PAYLOAD};

/// A message; without bytes if it need not be sent again.
#[derive(Default)]
pub(super) struct Frame {
    /// One of [`Buffers`](super::buffers::Buffers)': the header begins at `FRAME`, and the payload
    /// follows, unless it is lent.
    buffer: Vec<u8>,
    /// Offset of the end in the buffer.
    end: usize,
    lent: Option<Lent>,
    pub(super) is_done: bool,
}

/// A payload in another's memory.
struct Lent {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it is only read, and its owner keeps it valid for whichever thread reads it (contract of
// `Frame::lent`).
unsafe impl Send for Lent {}

impl Lent {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is valid until `Frame::keep` or `Frame::forget` (contract of
        // `Frame::lent`), which take the frame mutably, and so end this borrow. Nothing writes
        // there before the peer has the message. From then on it is sent again at most: bytes that
        // change meanwhile are passed on to the kernel and looked at by nobody, as the peer passes
        // over them. (Rust's model has no word for that: a race that decides nothing.)
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Frame {
    /// A message in a buffer, up to this offset.
    pub(super) fn new(buffer: Vec<u8>, end: usize) -> Self {
        Self {
            buffer,
            end,
            ..Self::default()
        }
    }

    /// A message whose header is in a buffer, and whose payload stays where it is.
    ///
    /// # Safety
    /// The payload stays valid until the frame [keeps](Self::keep) a copy, is
    /// [forgotten](Self::forget) or dropped; and unchanged until then or until the peer has
    /// received the message.
    pub(super) unsafe fn lent(buffer: Vec<u8>, payload: &[u8]) -> Self {
        let lent = Lent {
            start: NonNull::from(payload).cast(),
            len: payload.len(),
        };
        Self {
            lent: Some(lent),
            ..Self::new(buffer, PAYLOAD)
        }
    }

    /// The length of the payload that is lent.
    pub(super) fn lent_bytes(&self) -> Option<usize> {
        self.lent.as_ref().map(|lent| lent.len)
    }

    pub(super) fn len(&self) -> usize {
        self.end - FRAME + self.lent_bytes().unwrap_or(0)
    }

    /// The bytes after the first `skip`.
    pub(super) fn parts(&self, skip: usize) -> [&[u8]; 2] {
        let own = &self.buffer[FRAME..self.end];
        let lent = self.lent.as_ref().map_or(&[][..], Lent::bytes);
        let into_lent = skip.saturating_sub(own.len());
        [&own[skip.min(own.len())..], &lent[into_lent..]]
    }

    /// Copies the message to a buffer, so that its payload need not be lent any more. Returns the
    /// one of its header.
    pub(super) fn keep(&mut self, mut buffer: Vec<u8>) -> Vec<u8> {
        let end = FRAME + self.len();
        let [header, payload] = self.parts(0);
        buffer[FRAME..PAYLOAD].copy_from_slice(header);
        buffer[PAYLOAD..end].copy_from_slice(payload);
        (self.end, self.lent) = (end, None);
        std::mem::replace(&mut self.buffer, buffer)
    }

    /// Leaves nothing to be sent. Returns the buffer.
    pub(super) fn forget(&mut self) -> Vec<u8> {
        let frame = std::mem::take(self);
        self.is_done = true;
        frame.buffer
    }
}
