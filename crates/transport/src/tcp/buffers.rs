//! Buffers of messages, which are used again.

use super::header::HEADER_BYTES;
use super::resize;
use crate::LinkError;

/// Offset of the payload in a buffer, behind the header. Like the allocator's memory, it is at a
/// multiple of 16 bytes.
pub(super) const PAYLOAD: usize = HEADER_BYTES;

/// The least room for a payload: many small messages may wait to be acknowledged.
const LEAST: usize = 16;

/// Buffers that hold nothing now, by the room for a payload, which is a power of two. A message
/// takes one of about its own size, so that many small ones do not hold the memory of large ones.
#[derive(Default)]
pub(super) struct Buffers(Vec<Vec<Vec<u8>>>);

impl Buffers {
    /// A buffer for a frame with a payload of that many bytes, with any contents.
    ///
    /// # Errors
    /// There is no memory.
    pub(super) fn take(&mut self, payload: usize) -> Result<Vec<u8>, LinkError> {
        let room = payload.max(LEAST).next_power_of_two();
        let class = self.0.get_mut(class(room));
        if let Some(buffer) = class.and_then(Vec::pop) {
            return Ok(buffer);
        }
        let mut buffer = Vec::new();
        resize(&mut buffer, PAYLOAD + room)?;
        Ok(buffer)
    }

    /// Takes a buffer back.
    pub(super) fn put(&mut self, buffer: Vec<u8>) {
        if buffer.is_empty() {
            return;
        }
        let class = class(buffer.len() - PAYLOAD);
        if self.0.len() <= class {
            self.0.resize_with(class + 1, Vec::new);
        }
        self.0[class].push(buffer);
    }
}

fn class(room: usize) -> usize {
    room.trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_message_takes_at_most_twice_its_bytes_on_the_wire() {
        let mut buffers = Buffers::default();
        for payload in 0..=5000 {
            let buffer = buffers.take(payload).unwrap();
            let (taken, sent) = (buffer.capacity(), HEADER_BYTES + payload);
            assert!(taken <= 2 * sent, "{taken} bytes for a message of {sent}");
        }
    }
}
