//! Messages that are sent from where they lie: their memory is lent to the link until the peer has
//! them, or the link has made a copy.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use super::super::SLOTLESS_BYTES;
use super::super::buffers::PAYLOAD;
use super::super::frame::Frame;
use super::{AT_ONCE, Outbox, Outgoing};
use crate::LinkError;

impl Outbox {
    /// Sends messages from where they lie, as far as the kernel accepts them now: as many as there
    /// is room for, but at least one. Each has a slot's length, and the last may be shorter.
    /// Returns the number of the last message, and the bytes of all.
    ///
    /// # Safety
    /// The pointer is valid for reads of the payload by any thread until the messages [are
    /// back](Self::is_back), or the outbox [is withdrawn](Self::withdraw) or dropped, also while
    /// and after the owner writes there. The owner does not write there before the peer has
    /// received the message.
    pub(in crate::tcp) unsafe fn lend(
        &mut self,
        payload: NonNull<[u8]>,
        tag: u64,
    ) -> Result<(u64, usize), LinkError> {
        if self.frames.len() >= self.ask_at {
            self.ask();
        }
        let (first, mut done) = (self.next, 0);
        for _ in 0..self.room().clamp(1, self.homes * AT_ONCE) {
            let len = (payload.len() - done).min(self.geometry.slot_bytes);
            // A shorter one is expected in a slot.
            if len < SLOTLESS_BYTES {
                break;
            }
            let mut bytes = self.buffers.take(0)?;
            bytes[..PAYLOAD].copy_from_slice(&self.header(len, tag));
            // SAFETY: `done + len` is at most the payload's length, so that this is part of it. The
            // payload is valid for reads, also while and after the owner writes, until `is_back`,
            // `withdraw` or drop, and nothing is written before the peer has the message (this
            // function's contract). `is_back` has the frame keep a copy, or finds it forgotten;
            // `withdraw` drops it, as the outbox's drop does.
            let frame = unsafe {
                let start = payload.cast::<u8>().add(done);
                Frame::lent(bytes, NonNull::slice_from_raw_parts(start, len))
            };
            self.enqueue(frame);
            done += len;
        }
        // One long system call takes less time than several.
        self.write_from(first)?;
        Ok((self.next - 1, done))
    }

    /// Whether no message up to this number is lent any more: the kernel has accepted all, and the
    /// outbox has copies of the messages that the peer's host has not acknowledged.
    pub(in crate::tcp) fn is_back(&mut self, message: u64) -> Result<bool, LinkError> {
        if self.first_unsent() <= message {
            // Another socket may have taken over what the kernel had accepted: nobody else writes
            // to that one while a call waits here.
            self.write()?;
            if self.first_unsent() <= message {
                return Ok(false);
            }
        }
        self.note_acknowledged();
        let count = (message + 1).saturating_sub(self.first) as usize;
        for frame in self.frames.iter_mut().take(count) {
            if let Some(len) = frame.lent_bytes() {
                let buffer = self.buffers.take(len)?;
                self.buffers.put(frame.keep(buffer));
            }
        }
        Ok(true)
    }

    /// Ends the link. Reads nothing of what was lent from now on, and keeps no message.
    pub(in crate::tcp) fn withdraw(&mut self) {
        self.ended.get_or_insert(LinkError::Closed);
        self.sockets.iter_mut().for_each(Outgoing::forget);
        self.frames.clear();
        (self.first, self.unsent) = (self.next, 0);
    }
}
