//! A message as its sender keeps it: a header and a payload, in a buffer of the link or lent.
//!
//! Lent memory holds the payload until the peer has it. Then the owner may change it. The sender
//! may not know that yet, and send the message again from there, or copy it first. The kernel reads
//! this memory as a device does. But a copy races with the owner's writes, for which Rust's model
//! has no word: some of its bytes may be old, others new. That does no harm: only the peer looks at
//! the bytes, and it skips a message that it has.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use super::buffers::PAYLOAD;
use super::part::Part;

/// A message; without bytes if it need not be sent again.
#[derive(Default)]
pub(super) struct Frame {
    /// One of [`Buffers`](super::buffers::Buffers)': the header, then the payload, unless it
    /// is lent.
    buffer: Vec<u8>,
    /// Offset of the end in the buffer.
    end: usize,
    lent: Option<Lent>,
    pub(super) is_done: bool,
}

/// A payload in another's memory.
struct Lent(NonNull<[u8]>);

// SAFETY: it is only read, and valid for reads by whichever thread has the frame (contract of
// `Frame::lent`).
unsafe impl Send for Lent {}

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
    /// The pointer is valid for reads of the payload by any thread until the frame
    /// [keeps](Self::keep) a copy, is [forgotten](Self::forget) or dropped, also while and after
    /// the owner writes there. The owner does not write there before the peer has received the
    /// message.
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
        self.end + self.lent_bytes().unwrap_or(0)
    }

    /// The bytes after the first `skip`.
    pub(super) fn parts(&self, skip: usize) -> [Part<'_>; 2] {
        let own = Part::new(&self.buffer[..self.end]);
        let lent = self.lent.as_ref().map_or(Part::new(&[]), |lent| {
            // SAFETY: the pointer is valid for reads until `keep` or `forget` (contract of `lent`),
            // which take the frame mutably, and so end the part.
            unsafe { Part::lent(lent.0) }
        });
        [own.after(skip), lent.after(skip.saturating_sub(own.len()))]
    }

    /// Copies the bytes after the first `skip`.
    pub(super) fn copy(&self, skip: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.len() - skip];
        self.copy_to(&mut bytes, skip);
        bytes
    }

    fn copy_to(&self, room: &mut [u8], skip: usize) {
        let [own, lent] = self.parts(skip);
        lent.copy_to(own.copy_to(room));
    }

    /// Copies the message to a buffer, so that its payload need not be lent any more. Returns the
    /// one of its header.
    pub(super) fn keep(&mut self, mut buffer: Vec<u8>) -> Vec<u8> {
        let end = self.len();
        self.copy_to(&mut buffer, 0);
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
        // SAFETY: `memory` outlives the frame, and is written only by way of `owner`.
        let mut frame = unsafe { Frame::lent(header, owner) };
        assert_eq!(frame.copy(HEADER_BYTES), [1; 40]);
        // SAFETY: `owner` is of 40 bytes, of which this is the first, and nothing reads them now.
        unsafe { owner.cast::<u8>().write(2) };
        frame.keep(vec![0; PAYLOAD + memory.len()]);
        assert_eq!(frame.lent_bytes(), None);
        assert_eq!(frame.copy(HEADER_BYTES + 1), [1; 39]);
        assert_eq!(frame.copy(HEADER_BYTES)[0], 2);
    }
}
