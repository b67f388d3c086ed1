//! The sending half of a link over TCP: slots, and what the kernel has not taken of them. Knows sockets and headers;
//! knows neither operations nor peers' ranks.

use std::io::IoSlice;
use std::net::Shutdown;
use std::sync::Arc;

use rustix::event::PollFlags;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use socket2::Socket;
use spark_ccl_fork::Unshared;

use super::header::{HEADER_BYTES, Header};
use super::rails::Rails;
use super::{SLOTLESS_BYTES, ended_by, resize};
use crate::{Direct, Geometry, LinkError, LinkTx, SilentRail, Wait};

/// Offset of a frame (header, then payload) in its slot. It makes the payload start at a multiple of 16 bytes,
/// since the allocator aligns to 16.
const FRAME: usize = 8;
const PAYLOAD: usize = FRAME + HEADER_BYTES;
/// The initial size of a slot.
const SMALL_BYTES: usize = 256;
/// The most messages in one system call.
const BATCH: usize = 16;

/// The sending half of a link over TCP.
///
/// Dropping it sends what the kernel still accepts, and then shuts the sockets down for sending.
pub struct Tx {
    slot_bytes: usize,
    sockets: Vec<Outgoing>,
    /// Message `n` is in slot `n % slots` until the kernel has all of it.
    slots: Vec<Slot>,
    /// The number of the next message.
    next: u64,
    /// The length that was reserved for the next message.
    reserved: Option<usize>,
    /// How many messages the kernel has not accepted completely.
    unsent: usize,
    ended: Option<LinkError>,
    rails: Option<Arc<Rails>>,
}

struct Outgoing {
    socket: Arc<Unshared<Socket>>,
    /// The first message of this socket that the kernel has not accepted completely.
    message: u64,
    /// How many bytes of that message's frame the kernel has accepted.
    written: usize,
}

#[derive(Default)]
struct Slot {
    bytes: Vec<u8>,
    /// Offset of the frame's end.
    end: usize,
}

impl Tx {
    pub(super) fn new(
        sockets: &[Arc<Unshared<Socket>>],
        geometry: Geometry,
        rails: Option<Arc<Rails>>,
    ) -> Self {
        let outgoing = |(index, socket): (usize, &Arc<Unshared<Socket>>)| Outgoing {
            socket: Arc::clone(socket),
            message: index as u64,
            written: 0,
        };
        let slots = std::iter::repeat_with(Slot::default).take(geometry.slots);
        Self {
            slot_bytes: geometry.slot_bytes,
            sockets: sockets.iter().enumerate().map(outgoing).collect(),
            slots: slots.collect(),
            next: 0,
            reserved: None,
            unsent: 0,
            ended: None,
            rails,
        }
    }

    fn check_open(&self) -> Result<(), LinkError> {
        self.ended.clone().map_or(Ok(()), Err)
    }

    fn end<T>(&mut self, result: Result<T, LinkError>) -> Result<T, LinkError> {
        if let Err(error) = &result {
            self.ended = Some(error.clone());
        }
        result
    }

    /// Whether the kernel has all of the message that occupied the next message's slot before.
    fn has_room(&self) -> bool {
        let Some(before) = self.next.checked_sub(self.slots.len() as u64) else {
            return true;
        };
        self.sockets[self.socket_of(before)].message > before
    }

    /// The header of the next message.
    fn header(&self, len: usize, tag: u64) -> [u8; HEADER_BYTES] {
        let header = Header {
            sequence: self.next,
            len: len as u32,
            tag,
        };
        header.encode()
    }

    /// Sends what the kernel accepts now; the rest stays in the slot.
    fn send_now(&mut self, payload: &[u8], tag: u64) -> Result<(), LinkError> {
        let header = self.header(payload.len(), tag);
        let frame = HEADER_BYTES + payload.len();
        let socket = self.socket_of(self.next);
        let slot = self.slot_of(self.next);
        let stride = self.sockets.len() as u64;
        let outgoing = &mut self.sockets[socket];
        let mut sent = 0;
        if outgoing.message == self.next {
            let parts = [IoSlice::new(&header), IoSlice::new(payload)];
            sent = send(&outgoing.socket, &parts)
                .or_else(|error| ended_by("send", error).map_or(Ok(0), Err))?;
            if sent == frame {
                outgoing.message += stride;
                self.next += 1;
                return Ok(());
            }
            outgoing.written = sent;
        }
        let slot = &mut self.slots[slot];
        slot.provide(self.slot_bytes)?;
        slot.end = PAYLOAD + payload.len();
        slot.bytes[FRAME..PAYLOAD].copy_from_slice(&header);
        let rest = sent.saturating_sub(HEADER_BYTES);
        slot.bytes[PAYLOAD + rest..slot.end].copy_from_slice(&payload[rest..]);
        self.next += 1;
        self.unsent += 1;
        Ok(())
    }

    /// Sends the reserved slot, as far as the kernel accepts it now.
    fn send_reserved(&mut self, len: usize, tag: u64) -> Result<(), LinkError> {
        let header = self.header(len, tag);
        let slot = self.slot_of(self.next);
        let slot = &mut self.slots[slot];
        slot.bytes[FRAME..PAYLOAD].copy_from_slice(&header);
        slot.end = PAYLOAD + len;
        let socket = self.socket_of(self.next);
        let first = self.sockets[socket].message == self.next;
        self.next += 1;
        self.reserved = None;
        self.unsent += 1;
        // If an earlier message is still unsent, the kernel's buffer is full, so another call would be useless.
        if first { self.write_to(socket) } else { Ok(()) }
    }

    fn write(&mut self) -> Result<(), LinkError> {
        (0..self.sockets.len()).try_for_each(|socket| self.write_to(socket))
    }

    /// Writes what a socket accepts now.
    fn write_to(&mut self, socket: usize) -> Result<(), LinkError> {
        while self.sockets[socket].message < self.next {
            let outgoing = &self.sockets[socket];
            let stride = self.sockets.len();
            let mut frames = [IoSlice::new(&[]); BATCH];
            let mut count = 0;
            let mut offered = 0;
            let mut skip = outgoing.written;
            for message in (outgoing.message..self.next).step_by(stride).take(BATCH) {
                let slot = &self.slots[self.slot_of(message)];
                let frame = &slot.bytes[FRAME + skip..slot.end];
                frames[count] = IoSlice::new(frame);
                count += 1;
                offered += frame.len();
                skip = 0;
            }
            let sent = match send(&outgoing.socket, &frames[..count]) {
                Ok(sent) => sent,
                Err(error) => return ended_by("send", error).map_or(Ok(()), Err),
            };
            self.sent(socket, sent);
            if sent < offered {
                // The kernel's buffer is full.
                break;
            }
        }
        Ok(())
    }

    /// Accounts for bytes that the kernel accepted.
    fn sent(&mut self, socket: usize, bytes: usize) {
        let stride = self.sockets.len() as u64;
        let outgoing = &mut self.sockets[socket];
        outgoing.written += bytes;
        while outgoing.message < self.next {
            let slot = &self.slots[(outgoing.message % self.slots.len() as u64) as usize];
            let frame = slot.end - FRAME;
            if outgoing.written < frame {
                break;
            }
            outgoing.written -= frame;
            outgoing.message += stride;
            self.unsent -= 1;
        }
    }

    fn slot_of(&self, message: u64) -> usize {
        (message % self.slots.len() as u64) as usize
    }

    fn socket_of(&self, message: u64) -> usize {
        (message % self.sockets.len() as u64) as usize
    }
}

impl LinkTx for Tx {
    fn reserve(&mut self, len: usize) -> Result<Option<&mut [u8]>, LinkError> {
        let slot_bytes = self.slot_bytes;
        self.check_open()?;
        if len > slot_bytes {
            return Err(LinkError::Misuse(format!(
                "a message of {len} bytes on a link with slots of {slot_bytes}"
            )));
        }
        if !self.has_room() {
            return Ok(None);
        }
        let slot = self.slot_of(self.next);
        let slot = &mut self.slots[slot];
        // Grows once, to the full size: growing step by step would copy the slot each time.
        slot.provide(if len <= SMALL_BYTES {
            SMALL_BYTES
        } else {
            slot_bytes
        })?;
        self.reserved = Some(len);
        Ok(Some(&mut slot.bytes[PAYLOAD..PAYLOAD + len]))
    }

    fn commit(&mut self, len: usize, tag: u64) -> Result<(), LinkError> {
        self.check_open()?;
        if self.reserved != Some(len) {
            return Err(LinkError::Misuse(format!(
                "a commit of {len} bytes where {} were reserved",
                self.reserved
                    .map_or_else(|| "none".to_owned(), |len| len.to_string())
            )));
        }
        let result = self.send_reserved(len, tag);
        self.end(result)
    }

    fn send_from(&mut self, payload: &[u8], tag: u64) -> Result<Direct, LinkError> {
        self.check_open()?;
        if payload.len() < SLOTLESS_BYTES || payload.len() > self.slot_bytes {
            return Ok(Direct::Unable);
        }
        if self.reserved.is_some() {
            return Err(LinkError::Misuse(
                "a message without a slot while a slot is reserved".to_owned(),
            ));
        }
        if !self.has_room() {
            return Ok(Direct::NotYet);
        }
        let result = self.send_now(payload, tag);
        self.end(result).map(|()| Direct::Done)
    }

    fn silent_rails(&self) -> Vec<SilentRail> {
        self.rails
            .as_ref()
            .map_or_else(Vec::new, |rails| rails.silent())
    }

    fn holds_back(&self) -> bool {
        self.unsent > 0
    }

    fn flush(&mut self) -> Result<bool, LinkError> {
        self.check_open()?;
        let result = if self.unsent > 0 {
            self.write()
        } else {
            Ok(())
        };
        self.end(result).map(|()| self.unsent == 0)
    }

    fn watch(&self, wait: &mut Wait) {
        if self.ended.is_some() {
            return;
        }
        for outgoing in &self.sockets {
            if outgoing.message < self.next {
                wait.add(Arc::clone(&outgoing.socket) as _, PollFlags::OUT);
            }
        }
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        // Errors do not matter here: the peer sees the end in any case.
        let _ = self.flush();
        for outgoing in &self.sockets {
            let _ = outgoing.socket.shutdown(Shutdown::Write);
        }
    }
}

impl Slot {
    /// Makes room for `payload` bytes of payload.
    fn provide(&mut self, payload: usize) -> Result<(), LinkError> {
        if self.bytes.len() < PAYLOAD + payload {
            resize(&mut self.bytes, PAYLOAD + payload)?;
        }
        Ok(())
    }
}

fn send(socket: &Socket, frames: &[IoSlice<'_>]) -> rustix::io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match frames {
        [frame] => rustix::net::send(socket, frame, flags),
        frames => sendmsg(socket, frames, &mut SendAncillaryBuffer::default(), flags),
    }
}
