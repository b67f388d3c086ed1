//! Sends messages from memory that may change as soon as the call returns: the rest of one that the
//! kernel has accepted in part is copied.

use super::super::buffers::PAYLOAD;
use super::super::ended_by;
use super::super::frame::Frame;
use super::super::header::{HEADER_BYTES, Header};
use super::super::part::Part;
use super::{AT_ONCE, BATCH, Outbox};
use crate::LinkError;

impl Outbox {
    /// Sends the payload as messages of a slot's length, the last of which may be shorter, as far
    /// as the kernel accepts them now. If it accepts one in part, or not even the first, the rest
    /// of that one is copied to a buffer. Returns how many bytes of the payload were sent or
    /// copied.
    pub(in crate::tcp) fn send_from(
        &mut self,
        payload: &[u8],
        tag: u64,
    ) -> Result<usize, LinkError> {
        let (socket, mut sent) = (self.socket_of(self.next), 0);
        if self.sockets[socket].queue.is_empty() {
            sent = self.offer_from(payload, tag, socket)?;
        }
        let mut done = 0;
        for part in payload.chunks(self.geometry.slot_bytes) {
            if sent < HEADER_BYTES + part.len() {
                if sent > 0 || done == 0 {
                    self.copy_rest(part, tag, socket, sent)?;
                    done += part.len();
                }
                break;
            }
            sent -= HEADER_BYTES + part.len();
            done += part.len();
            let message = self.next;
            self.add(Frame::default());
            self.finish(message);
        }
        Ok(done)
    }

    /// Offers messages to a socket that has nothing else to send. Returns how many bytes the kernel
    /// has accepted.
    ///
    /// One long system call takes less time than several: see `docs/what-bounds-it.md`.
    fn offer_from(&mut self, payload: &[u8], tag: u64, socket: usize) -> Result<usize, LinkError> {
        // With several sockets, the next message is another one's.
        let most = if self.homes == 1 { AT_ONCE } else { 1 };
        let messages = || payload.chunks(self.geometry.slot_bytes).take(most);
        let mut headers = [[0; HEADER_BYTES]; AT_ONCE];
        for ((header, part), sequence) in headers.iter_mut().zip(messages()).zip(self.next..) {
            let len = part.len() as u32;
            *header = Header { sequence, len, tag }.encode();
        }
        let mut parts = [Part::new(&[]); BATCH];
        let frames = headers.iter().zip(messages());
        let all = frames.flat_map(|(header, part)| [Part::new(header), Part::new(part)]);
        let places = parts.iter_mut().zip(all);
        let count = places.map(|(place, part)| *place = part).count();
        let outgoing = &mut self.sockets[socket];
        let taken = outgoing.stream.send(&parts[..count]);
        let sent = taken.or_else(|error| ended_by("send", error).map_or(Ok(0), Err))?;
        outgoing.accepted += sent as u64;
        Ok(sent)
    }

    /// Keeps a message in a buffer. The kernel has accepted `sent` bytes of its frame.
    fn copy_rest(
        &mut self,
        payload: &[u8],
        tag: u64,
        socket: usize,
        sent: usize,
    ) -> Result<(), LinkError> {
        let mut bytes = self.buffers.take(payload.len())?;
        bytes[..PAYLOAD].copy_from_slice(&self.header(payload.len(), tag));
        let rest = sent.saturating_sub(HEADER_BYTES);
        bytes[PAYLOAD + rest..PAYLOAD + payload.len()].copy_from_slice(&payload[rest..]);
        let message = self.next;
        self.add(Frame::new(bytes, PAYLOAD + payload.len()));
        let outgoing = &mut self.sockets[socket];
        if sent > 0 {
            // Nothing was queued: otherwise the kernel would not have been asked.
            outgoing.written = sent;
        }
        outgoing.queue.push_back(message);
        self.unsent += 1;
        Ok(())
    }
}
