//! Messages that are sent from where they lie: their memory is lent to the link until the peer has
//! them, or the link has made a copy.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use super::super::buffers::PAYLOAD;
use super::super::frame::Frame;
use super::{Outbox, Outgoing};
use crate::LinkError;

impl Outbox {
    /// Sends a message from where it lies, as far as the kernel accepts it now. Returns its number.
    ///
    /// # Safety
    /// Until the message [is back](Self::is_back), or the outbox [is withdrawn](Self::withdraw) or
    /// dropped, the pointer is valid for reads of the payload by any thread, also while and after
    /// the owner writes there. The owner does not before the peer has received the message.
    pub(in crate::tcp) unsafe fn lend(
        &mut self,
        payload: NonNull<[u8]>,
        tag: u64,
    ) -> Result<u64, LinkError> {
        if self.frames.len() >= self.ask_at {
            self.ask();
        }
        let message = self.next;
        let mut bytes = self.buffers.take(0)?;
        bytes[..PAYLOAD].copy_from_slice(&self.header(payload.len(), tag));
        // SAFETY: the pointer is valid for reads, also while and after the owner writes, until
        // `is_back`, `withdraw` or drop, and nothing is written before the peer has the message
        // (this function's contract). `is_back` has the frame keep a copy, or finds it forgotten;
        // `withdraw` drops it, as the outbox's drop does.
        let frame = unsafe { Frame::lent(bytes, payload) };
        self.begin(frame).map(|()| message)
    }

    /// Whether no message up to this number is lent any more: the kernel has accepted them, and
    /// copies are kept of those that the peer's host has not acknowledged.
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
