//! What was read from one socket and not lent yet.

use rustix::net::{RecvFlags, recv};
use socket2::Socket;

use super::header::{HEADER_BYTES, Header};
use super::{ended_by, resize};
use crate::LinkError;

/// The buffer's first size: enough for many small messages.
const SMALL_BYTES: usize = 16 << 10;
/// Reading further ahead than this would drive what is read out of the caches.
const AHEAD_BYTES: usize = 1 << 20;

/// A buffer of bytes in the order of the stream. Messages are lent where they lie, so that each is
/// contiguous; what is read last is cut such that hardly anything needs to be moved for that.
#[derive(Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    /// What was read and not released is `bytes[start..end]`.
    start: usize,
    end: usize,
    /// The checked header of the message at `start`.
    header: Option<Header>,
}

/// What a stream must look like.
#[derive(Clone, Copy)]
pub(super) struct Expected {
    pub(super) sequence: u32,
    pub(super) channel: u32,
    pub(super) slot_bytes: usize,
    /// Messages to read ahead.
    pub(super) ahead: usize,
}

impl Inbox {
    /// The message at the head, after at most one system call; `None`: not yet.
    ///
    /// # Errors
    /// When the stream has ended, or is not as expected.
    pub(super) fn message(
        &mut self,
        socket: &Socket,
        expected: Expected,
    ) -> Result<Option<(u64, &[u8])>, LinkError> {
        if !self.has_message(expected)? {
            self.read(socket, expected)?;
            if !self.has_message(expected)? {
                return Ok(None);
            }
        }
        Ok(self.header.map(|header| {
            let payload = self.start + HEADER_BYTES;
            (
                header.tag,
                &self.bytes[payload..payload + header.len as usize],
            )
        }))
    }

    /// Forgets the message at the head, if it was lent.
    pub(super) fn release(&mut self) {
        if let Some(header) = self.header.take() {
            self.start += frame_bytes(&header);
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    fn has_message(&mut self, expected: Expected) -> Result<bool, LinkError> {
        if self.header.is_none() {
            let head = &self.bytes[self.start..self.end];
            let Some(head) = head.first_chunk() else {
                return Ok(false);
            };
            let Expected {
                sequence,
                channel,
                slot_bytes,
                ..
            } = expected;
            self.header = Some(Header::parse(head, sequence, channel, slot_bytes)?);
        }
        Ok(self
            .header
            .is_some_and(|header| self.end - self.start >= frame_bytes(&header)))
    }

    fn read(&mut self, socket: &Socket, expected: Expected) -> Result<(), LinkError> {
        self.make_room(expected)?;
        let limit = self.limit(expected);
        let space = &mut self.bytes[self.end..limit];
        match recv(socket, space, RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err(LinkError::Closed),
            Ok((count, _)) => {
                self.end += count;
                Ok(())
            }
            Err(error) => ended_by("recv", error).map_or(Ok(()), Err),
        }
    }

    /// Makes sure that the message at the head fits.
    fn make_room(&mut self, expected: Expected) -> Result<(), LinkError> {
        let largest = HEADER_BYTES + expected.slot_bytes;
        // A header that is not known yet has arrived in part at most: moving it costs nothing.
        let needed = self
            .header
            .map_or(largest.min(SMALL_BYTES), |header| frame_bytes(&header));
        if self.header.is_none() || self.start + needed > self.bytes.len() {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if needed > self.bytes.len() {
            let small = needed <= SMALL_BYTES;
            let messages = expected.ahead.min(AHEAD_BYTES / largest).max(2);
            resize(
                &mut self.bytes,
                if small {
                    SMALL_BYTES
                } else {
                    messages * largest
                },
            )?;
        }
        Ok(())
    }

    /// How far to read: no message is begun that might not fit, unless its length is unknown.
    fn limit(&self, expected: Expected) -> usize {
        let largest = HEADER_BYTES + expected.slot_bytes;
        let all = self.bytes.len();
        match self.header.map(|header| self.start + frame_bytes(&header)) {
            Some(head) if head + largest > all => head,
            _ => all,
        }
    }
}

fn frame_bytes(header: &Header) -> usize {
    HEADER_BYTES + header.len as usize
}
