//! A message as its sender keeps it: a header and a payload, in a buffer of the link or lent.
//!
//! Memory that is lent holds the payload until the peer has it. Then the owner may change it, while
//! the sender does not know yet. If the message is sent again, the peer passes over it.
#![allow(unsafe_code)]

use std::ptr::NonNull;

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
struct Lent(NonNull<[u8]>);

// SAFETY: it is only read, and its owner keeps it valid for whichever thread reads it (contract of
// `Frame::lent`).
unsafe impl Send for Lent {}

impl Lent {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is valid until `Frame::keep` or `Frame::forget` (contract of
        // `Frame::lent`), which take the frame mutably, and so end this borrow. Nothing writes
        // there before the peer has the message. From then on the owner's writes leave the pointer
        // valid, as it comes from the owner's, and what is read is sent again at most, from there
        // or from a copy: bytes that change meanwhile decide nothing: the peer passes over them.
        // (Rust's model has no word for that: a race that decides nothing.)
        unsafe { self.0.as_ref() }
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
    /// received the message. Writes after that leave the pointer valid.
    pub(super) unsafe fn lent(buffer: Vec<u8>, payload: NonNull<[u8]>) -> Self {
        Self {
            lent: Some(Lent(payload)),
            ..Self::new(buffer, PAYLOAD)
        }
    }

    /// The length of the payload that is lent.
    pub(super) fn lent_bytes(&self) -> Option<usize> {
        self.lent.as_ref().map(|lent| lent.0.len())
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

#[cfg(test)]
mod tests {
    use super::super::header::HEADER_BYTES;
    use super::*;

    /// The peer has it then, and does not look at what is sent again. Miri sees whether the pointer
    /// has stayed valid.
    #[test]
    fn what_is_lent_may_be_written_and_copied_after_that() {
        let mut memory = [1; 40];
        let owner = NonNull::from(&mut memory[..]);
        let header = vec![0; PAYLOAD];
        // SAFETY: the memory outlives the frame.
        let mut frame = unsafe { Frame::lent(header, owner) };
        assert_eq!(frame.parts(HEADER_BYTES)[1], [1; 40]);
        // SAFETY: the frame is not being read.
        unsafe { owner.cast::<u8>().write(2) };
        frame.keep(vec![0; PAYLOAD + memory.len()]);
        let [_, payload] = frame.parts(0);
        assert!(payload.is_empty());
        assert_eq!(frame.parts(HEADER_BYTES)[0][..2], [2, 1]);
    }
}
