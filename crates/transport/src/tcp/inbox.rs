//! The read buffer of one socket: finds messages in a stream of bytes, and reads no more ahead than pays.

use std::io::IoSliceMut;

use rustix::net::{RecvAncillaryBuffer, RecvFlags, recv, recvmsg};
use socket2::Socket;

use super::header::{HEADER_BYTES, Header};
use super::{ended_by, resize};
use crate::{Direct, LinkError};

/// How much is read ahead of small messages, to save system calls. Of large messages only the next header is read
/// ahead: their bytes may be read directly to their destination, and late reads leave the data in the caches.
const SMALL_BYTES: usize = 32 << 10;

/// A buffer of bytes in stream order. Messages are returned in place, so each must be contiguous. Reads end at
/// boundaries that leave hardly anything to move for this.
#[derive(Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    /// `bytes[start..end]` was read and not released.
    start: usize,
    end: usize,
    /// The checked header of the message at `start`.
    header: Option<Header>,
    /// The message at the head is being received directly, and this many of its bytes have arrived; its header is
    /// no longer in the buffer.
    placed: Option<usize>,
}

/// What the next header must contain.
#[derive(Clone, Copy)]
pub(super) struct Expected {
    pub(super) sequence: u64,
    pub(super) slot_bytes: usize,
}

impl Inbox {
    /// The next message, after at most one system call. `None`: not yet.
    ///
    /// # Errors
    /// When the stream has ended, or is not as expected.
    pub(super) fn message(
        &mut self,
        socket: &Socket,
        expected: Expected,
    ) -> Result<Option<(u64, &[u8])>, LinkError> {
        if self.placed.is_some() {
            return Err(received_directly());
        }
        if !self.has_message(expected)? {
            self.read(socket, expected, SMALL_BYTES)?;
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

    /// Receives the message at the head directly into the caller's memory, if it is the expected one.
    ///
    /// # Errors
    /// When the stream has ended, or is not as expected.
    pub(super) fn message_into(
        &mut self,
        socket: &Socket,
        expected: Expected,
        payload: &mut [u8],
        tag: u64,
    ) -> Result<Direct, LinkError> {
        let Some(header) = self.head(socket, expected)? else {
            return Ok(Direct::NotYet);
        };
        let meant = header.tag == tag && header.len as usize == payload.len();
        let placed = match self.placed {
            Some(_) if !meant => return Err(received_directly()),
            Some(placed) => placed,
            None if !meant => return Ok(Direct::Unable),
            None => {
                self.start += HEADER_BYTES;
                0
            }
        };
        let rest = &mut payload[placed..];
        let buffered = rest.len().min(self.end - self.start);
        rest[..buffered].copy_from_slice(&self.bytes[self.start..self.start + buffered]);
        self.start += buffered;
        self.placed = Some(placed + buffered);
        let rest = &mut rest[buffered..];
        let read = if rest.is_empty() {
            0
        } else {
            self.read_into(socket, rest)?
        };
        if read < rest.len() {
            self.placed = Some(placed + buffered + read);
            return Ok(Direct::NotYet);
        }
        self.placed = None;
        self.header = None;
        Ok(Direct::Done)
    }

    /// Removes the message at the head, if it was returned.
    pub(super) fn release(&mut self) {
        if let Some(header) = self.header.take() {
            self.start += frame_bytes(&header);
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// The header of the next message, after at most one system call.
    fn head(&mut self, socket: &Socket, expected: Expected) -> Result<Option<Header>, LinkError> {
        self.parse(expected)?;
        if self.header.is_none() {
            // The payload is then read directly to its destination.
            self.read(socket, expected, HEADER_BYTES)?;
            self.parse(expected)?;
        }
        Ok(self.header)
    }

    fn has_message(&mut self, expected: Expected) -> Result<bool, LinkError> {
        self.parse(expected)?;
        Ok(self
            .header
            .is_some_and(|header| self.end - self.start >= frame_bytes(&header)))
    }

    /// Checks the header at the head, once it is complete.
    fn parse(&mut self, expected: Expected) -> Result<(), LinkError> {
        if self.header.is_none()
            && let Some(head) = self.bytes[self.start..self.end].first_chunk()
        {
            let Expected {
                sequence,
                slot_bytes,
            } = expected;
            self.header = Some(Header::parse(head, sequence, slot_bytes)?);
        }
        Ok(())
    }

    /// Reads up to the end of the header after the next message, or `ahead` bytes if that is more.
    fn read(&mut self, socket: &Socket, expected: Expected, ahead: usize) -> Result<(), LinkError> {
        let needed = self.header.map_or(0, |header| frame_bytes(&header)) + HEADER_BYTES;
        self.make_room(needed, expected.slot_bytes)?;
        let limit = self.bytes.len().min(self.start + needed.max(ahead));
        let space = &mut self.bytes[self.end..limit];
        let count = received(recv(socket, space, RecvFlags::DONTWAIT).map(|(count, _)| count))?;
        self.end += count;
        Ok(())
    }

    /// Makes room for `needed` bytes from `start` on.
    fn make_room(&mut self, needed: usize, slot_bytes: usize) -> Result<(), LinkError> {
        // An unknown header is incomplete, so moving it costs next to nothing.
        if self.header.is_none() || self.start + needed > self.bytes.len() {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if needed > self.bytes.len() {
            let largest = slot_bytes + 2 * HEADER_BYTES;
            let size = if needed <= SMALL_BYTES {
                SMALL_BYTES
            } else {
                largest.max(SMALL_BYTES)
            };
            resize(&mut self.bytes, size)?;
        }
        Ok(())
    }

    /// Reads into a message's destination, and the next header into the buffer, which is empty.
    fn read_into(&mut self, socket: &Socket, rest: &mut [u8]) -> Result<usize, LinkError> {
        (self.start, self.end) = (0, 0);
        let missing = rest.len();
        let mut spaces = [
            IoSliceMut::new(rest),
            IoSliceMut::new(&mut self.bytes[..HEADER_BYTES]),
        ];
        let mut ancillary = RecvAncillaryBuffer::default();
        let got = recvmsg(socket, &mut spaces, &mut ancillary, RecvFlags::DONTWAIT);
        let count = received(got.map(|message| message.bytes))?;
        self.end = count.saturating_sub(missing);
        Ok(count.min(missing))
    }
}

/// How many bytes arrived; an error if no more will arrive.
fn received(got: rustix::io::Result<usize>) -> Result<usize, LinkError> {
    match got {
        Ok(0) => Err(LinkError::Closed),
        Ok(count) => Ok(count),
        Err(error) => ended_by("recv", error).map_or(Ok(0), Err),
    }
}

fn received_directly() -> LinkError {
    LinkError::Misuse(
        "the next message is being received directly into the caller's memory".to_owned(),
    )
}

fn frame_bytes(header: &Header) -> usize {
    HEADER_BYTES + header.len as usize
}
