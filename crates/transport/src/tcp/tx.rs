//! The sending half of a link over TCP.

use std::io::IoSlice;
use std::net::Shutdown;
use std::sync::Arc;

use rustix::event::PollFlags;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use socket2::Socket;
use spark_ccl_fork::Unshared;

use super::header::{HEADER_BYTES, Header};
use super::{SLOTLESS_BYTES, ended_by, no_channel, resize};
use crate::{Direct, Geometry, LinkError, LinkTx, Wait};

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
    geometry: Geometry,
    channels: Vec<Channel>,
    ended: Option<LinkError>,
}

struct Channel {
    sockets: Vec<Outgoing>,
    /// Message `n` is in slot `n % slots` until the kernel has all of it.
    slots: Vec<Slot>,
    /// The number of the next message.
    next: u64,
    /// The length that was reserved for the next message.
    reserved: Option<usize>,
    /// How many messages the kernel has not accepted completely.
    unsent: usize,
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
    pub(super) fn new(sockets: &[Vec<Arc<Unshared<Socket>>>], geometry: Geometry) -> Self {
        let channels = sockets
            .iter()
            .map(|sockets| Channel::new(sockets, geometry.slots));
        Self {
            geometry,
            channels: channels.collect(),
            ended: None,
        }
    }

    fn channel(&mut self, channel: usize) -> Result<&mut Channel, LinkError> {
        if let Some(ended) = &self.ended {
            return Err(ended.clone());
        }
        let channels = self.channels.len();
        self.channels
            .get_mut(channel)
            .ok_or_else(|| no_channel(channel, channels))
    }

    fn end<T>(&mut self, result: Result<T, LinkError>) -> Result<T, LinkError> {
        if let Err(error) = &result {
            self.ended = Some(error.clone());
        }
        result
    }
}

impl LinkTx for Tx {
    fn reserve(&mut self, channel: usize, len: usize) -> Result<Option<&mut [u8]>, LinkError> {
        let slot_bytes = self.geometry.slot_bytes;
        let channel = self.channel(channel)?;
        if len > slot_bytes {
            return Err(LinkError::Misuse(format!(
                "a message of {len} bytes on a link with slots of {slot_bytes}"
            )));
        }
        if !channel.has_room() {
            return Ok(None);
        }
        let slot = channel.slot_of(channel.next);
        let slot = &mut channel.slots[slot];
        // Grows once, to the full size: growing step by step would copy the slot each time.
        slot.provide(if len <= SMALL_BYTES {
            SMALL_BYTES
        } else {
            slot_bytes
        })?;
        channel.reserved = Some(len);
        Ok(Some(&mut slot.bytes[PAYLOAD..PAYLOAD + len]))
    }

    fn commit(&mut self, channel: usize, len: usize, tag: u64) -> Result<(), LinkError> {
        let number = channel as u32;
        let channel = self.channel(channel)?;
        if channel.reserved != Some(len) {
            return Err(LinkError::Misuse(format!(
                "a commit of {len} bytes where {} were reserved",
                channel
                    .reserved
                    .map_or_else(|| "none".to_owned(), |len| len.to_string())
            )));
        }
        let result = channel.commit(number, len, tag);
        self.end(result)
    }

    fn send_from(&mut self, channel: usize, payload: &[u8], tag: u64) -> Result<Direct, LinkError> {
        let (number, slot_bytes) = (channel as u32, self.geometry.slot_bytes);
        let channel = self.channel(channel)?;
        if payload.len() < SLOTLESS_BYTES || payload.len() > slot_bytes {
            return Ok(Direct::Unable);
        }
        if channel.reserved.is_some() {
            return Err(LinkError::Misuse(
                "a message without a slot while a slot is reserved".to_owned(),
            ));
        }
        if !channel.has_room() {
            return Ok(Direct::NotYet);
        }
        let result = channel.send_from(number, payload, tag, slot_bytes);
        self.end(result).map(|()| Direct::Done)
    }

    fn holds_back(&self, channel: usize) -> bool {
        self.channels
            .get(channel)
            .is_some_and(|channel| channel.unsent > 0)
    }

    fn flush(&mut self) -> Result<bool, LinkError> {
        if let Some(ended) = &self.ended {
            return Err(ended.clone());
        }
        let mut all = true;
        let mut result = Ok(());
        for channel in self
            .channels
            .iter_mut()
            .filter(|channel| channel.unsent > 0)
        {
            result = channel.write();
            all &= channel.unsent == 0;
            if result.is_err() {
                break;
            }
        }
        self.end(result).map(|()| all)
    }

    fn watch(&self, wait: &mut Wait) {
        if self.ended.is_some() {
            return;
        }
        for channel in self.channels.iter().filter(|channel| channel.unsent > 0) {
            for outgoing in &channel.sockets {
                if outgoing.message < channel.next {
                    wait.add(Arc::clone(&outgoing.socket) as _, PollFlags::OUT);
                }
            }
        }
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        // Errors do not matter here: the peer sees the end in any case.
        let _ = self.flush();
        for outgoing in self.channels.iter().flat_map(|channel| &channel.sockets) {
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

impl Channel {
    fn new(sockets: &[Arc<Unshared<Socket>>], slots: usize) -> Self {
        let outgoing = |(index, socket): (usize, &Arc<Unshared<Socket>>)| Outgoing {
            socket: Arc::clone(socket),
            message: index as u64,
            written: 0,
        };
        Self {
            sockets: sockets.iter().enumerate().map(outgoing).collect(),
            slots: std::iter::repeat_with(Slot::default).take(slots).collect(),
            next: 0,
            reserved: None,
            unsent: 0,
        }
    }

    /// Whether the kernel has all of the message that occupied the next message's slot before.
    fn has_room(&self) -> bool {
        let Some(before) = self.next.checked_sub(self.slots.len() as u64) else {
            return true;
        };
        self.sockets[self.socket_of(before)].message > before
    }

    /// The header of the next message.
    fn header(&self, channel: u32, len: usize, tag: u64) -> [u8; HEADER_BYTES] {
        let header = Header {
            sequence: self.next as u32,
            channel,
            len: len as u32,
            tag,
        };
        header.encode()
    }

    /// Sends what the kernel accepts now; the rest stays in the slot.
    fn send_from(
        &mut self,
        channel: u32,
        payload: &[u8],
        tag: u64,
        slot_bytes: usize,
    ) -> Result<(), LinkError> {
        let header = self.header(channel, payload.len(), tag);
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
        slot.provide(slot_bytes)?;
        slot.end = PAYLOAD + payload.len();
        slot.bytes[FRAME..PAYLOAD].copy_from_slice(&header);
        let rest = sent.saturating_sub(HEADER_BYTES);
        slot.bytes[PAYLOAD + rest..slot.end].copy_from_slice(&payload[rest..]);
        self.next += 1;
        self.unsent += 1;
        Ok(())
    }

    fn commit(&mut self, channel: u32, len: usize, tag: u64) -> Result<(), LinkError> {
        let header = self.header(channel, len, tag);
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

fn send(socket: &Socket, frames: &[IoSlice<'_>]) -> rustix::io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match frames {
        [frame] => rustix::net::send(socket, frame, flags),
        frames => sendmsg(socket, frames, &mut SendAncillaryBuffer::default(), flags),
    }
}
