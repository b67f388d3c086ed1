//! The read buffer of one socket: finds messages in a stream of bytes, and reads no more ahead than
//! pays.

use std::io::IoSliceMut;
use std::ops::RangeInclusive;

use super::header::{HEADER_BYTES, Header};
use super::stream::Stream;
use super::{ended_by, resize};
use crate::{Direct, LinkError};

/// How much is read ahead of small messages, to save system calls. Of large messages only the next
/// header is read ahead: their bytes may be read directly to their destination, and late reads
/// leave the data in the caches.
const SMALL_BYTES: usize = 32 << 10;
/// How far a message that has come over another socket than its own may be ahead.
const MOST_AHEAD: u64 = 1 << 32;

/// A buffer of bytes in stream order. Messages are returned in place, so each must be contiguous.
/// Reads end at boundaries that leave hardly anything to move for this.
#[derive(Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    /// `bytes[start..end]` was read and not released.
    start: usize,
    end: usize,
    /// The checked header of the message at `start`.
    header: Option<Header>,
    /// The message at the head is being received directly, and this many of its bytes have arrived;
    /// its header is no longer in the buffer.
    placed: Option<usize>,
    /// How many bytes come before the next header, of a message that has come over another socket.
    outdated: usize,
    /// Why no more can be read.
    pub(super) ended: Option<LinkError>,
}

/// The expected contents of the next header.
#[derive(Clone, Copy)]
pub(super) struct Expected {
    /// The number of the message that the receiver wants.
    pub(super) sequence: u64,
    pub(super) slot_bytes: usize,
    /// A message may come over any socket, and twice.
    pub(super) may_detour: bool,
}

impl Expected {
    fn sequences(self) -> RangeInclusive<u64> {
        if self.may_detour {
            0..=self.sequence.saturating_add(MOST_AHEAD)
        } else {
            self.sequence..=self.sequence
        }
    }
}

impl Inbox {
    /// The socket's next message that is not outdated, after at most one system call. `None`: not
    /// yet.
    ///
    /// # Errors
    /// When the stream has ended, or is not as expected.
    pub(super) fn message(
        &mut self,
        stream: &dyn Stream,
        expected: Expected,
    ) -> Result<Option<(Header, &[u8])>, LinkError> {
        if !self.has_message(expected)? {
            if self.placed.is_some() {
                return Err(received_directly());
            }
            self.read(stream, expected, SMALL_BYTES)?;
            if !self.has_message(expected)? {
                return Ok(None);
            }
        }
        Ok(self.header.map(|header| {
            let payload = self.start + HEADER_BYTES;
            (header, &self.bytes[payload..payload + header.len as usize])
        }))
    }

    /// Receives the message at the head directly into the caller's memory, if it is the expected
    /// one.
    ///
    /// # Errors
    /// When the stream has ended, or is not as expected.
    pub(super) fn message_into(
        &mut self,
        stream: &dyn Stream,
        expected: Expected,
        payload: &mut [u8],
        tag: u64,
    ) -> Result<Direct, LinkError> {
        let head = self.head(stream, expected)?;
        let Some(header) = head.filter(|head| head.sequence == expected.sequence) else {
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
            self.read_into(stream, rest)?
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
    fn head(
        &mut self,
        stream: &dyn Stream,
        expected: Expected,
    ) -> Result<Option<Header>, LinkError> {
        self.parse(expected)?;
        if self.header.is_none() {
            // The payload is then read directly to its destination.
            self.read(stream, expected, HEADER_BYTES)?;
            self.parse(expected)?;
        }
        Ok(self.header)
    }

    fn has_message(&mut self, expected: Expected) -> Result<bool, LinkError> {
        self.parse(expected)?;
        let buffered = self.end - self.start;
        let is_whole = |header: Header| buffered >= frame_bytes(&header);
        Ok(self.placed.is_none() && self.header.is_some_and(is_whole))
    }

    /// Whether the head is a message after the expected one.
    pub(super) fn is_ahead(&self, expected: Expected) -> bool {
        self.header
            .is_some_and(|head| head.sequence > expected.sequence)
    }

    /// Checks the header at the head, once it is complete, and passes over what is outdated.
    fn parse(&mut self, expected: Expected) -> Result<(), LinkError> {
        loop {
            if let Some(old) = self
                .header
                .take_if(|head| head.sequence < expected.sequence)
            {
                self.outdated += match self.placed.take() {
                    Some(placed) => old.len as usize - placed,
                    None => frame_bytes(&old),
                };
            }
            let passed = self.outdated.min(self.end - self.start);
            self.start += passed;
            self.outdated -= passed;
            if self.header.is_some() || self.outdated > 0 {
                return Ok(());
            }
            let Some(head) = self.bytes[self.start..self.end].first_chunk() else {
                return Ok(());
            };
            let head = Header::parse(head, expected.sequences(), expected.slot_bytes)?;
            self.header = Some(head);
        }
    }

    /// Reads up to the end of the header after the next message, or `ahead` bytes if that is more.
    fn read(
        &mut self,
        stream: &dyn Stream,
        expected: Expected,
        ahead: usize,
    ) -> Result<(), LinkError> {
        self.check_open()?;
        let head = self
            .header
            .map_or(self.outdated, |header| frame_bytes(&header));
        let needed = head + HEADER_BYTES;
        self.make_room(needed, expected.slot_bytes)?;
        let limit = self.bytes.len().min(self.start + needed.max(ahead));
        let space = &mut self.bytes[self.end..limit];
        let got = stream.receive(&mut [IoSliceMut::new(space)]);
        self.end += self.received(stream, got)?;
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
    fn read_into(&mut self, stream: &dyn Stream, rest: &mut [u8]) -> Result<usize, LinkError> {
        self.check_open()?;
        (self.start, self.end) = (0, 0);
        let missing = rest.len();
        let mut spaces = [
            IoSliceMut::new(rest),
            IoSliceMut::new(&mut self.bytes[..HEADER_BYTES]),
        ];
        let got = stream.receive(&mut spaces);
        let count = self.received(stream, got)?;
        self.end = count.saturating_sub(missing);
        Ok(count.min(missing))
    }

    fn check_open(&self) -> Result<(), LinkError> {
        self.ended.clone().map_or(Ok(()), Err)
    }

    /// How many bytes arrived; an error if no more will arrive, or the kernel refuses this call.
    fn received(
        &mut self,
        stream: &dyn Stream,
        got: rustix::io::Result<usize>,
    ) -> Result<usize, LinkError> {
        let ended = match got {
            Ok(0) => LinkError::Closed,
            Ok(count) => return Ok(count),
            // Most looks find nothing: no second system call for them.
            Err(error) => match ended_by("recv", error) {
                None => return Ok(0),
                Some(ended) => ended,
            },
        };
        if got.is_ok() || stream.silence().is_err() {
            self.ended = Some(ended.clone());
        }
        Err(ended)
    }

    /// Whether an error of this inbox says that no more can be read.
    pub(super) fn is_end(&self, error: &LinkError) -> bool {
        self.ended.is_some() && matches!(error, LinkError::Closed | LinkError::Os { .. })
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
