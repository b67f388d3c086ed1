//! Copies of messages that a receive of the same group writes over: a message may arrive before
//! another one that is read from the same memory has left.

use std::sync::Arc;

use spark_ccl_cuda::cudarc::driver::{CudaContext, CudaStream};
use spark_ccl_cuda::{DeviceBlock, copy};
use spark_ccl_gpu::{self as gpu, Message, MessageDirection};
use spark_ccl_log::Mutex;
use spark_ccl_types::overwritten;

use crate::error::Error;

/// Copies begin where any element may.
const ALIGNMENT: u64 = 256;

/// A rank's memory for copies, on its GPU. One block serves all calls, which run one after the
/// other. It is made when a group first needs it, or needs a longer one; shorter ones stay, for
/// graphs that have captured them.
#[derive(Debug, Default)]
pub(super) struct CopyMemory(Mutex<Vec<OwnBlock>>);

#[derive(Debug)]
struct OwnBlock {
    memory: DeviceBlock,
    bytes: u64,
}

/// A copy that the stream makes before messages are passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MessageCopy {
    to: u64,
    from: u64,
    bytes: u64,
}

impl CopyMemory {
    /// Where copies of this many bytes may begin.
    pub(super) fn of(
        &self,
        context: &Arc<CudaContext>,
        bytes: u64,
    ) -> Result<u64, spark_ccl_cuda::Error> {
        let mut blocks = self.0.lock();
        let longest = blocks.last().map_or(0, |block| block.bytes);
        if longest < bytes {
            // Twice as long, so that all blocks together are no more than twice the longest.
            let bytes = bytes.max(2 * longest);
            let memory = DeviceBlock::new(context, bytes as usize)?;
            blocks.push(OwnBlock { memory, bytes });
        }
        Ok(blocks.last().map_or(0, |block| block.memory.address()))
    }
}

impl Drop for CopyMemory {
    fn drop(&mut self) {
        for block in self.0.get_mut().drain(..) {
            if let Err(error) = block.memory.settle() {
                spark_ccl_log::warn!("memory for copies of messages is never freed: {error}");
                std::mem::forget(block);
            }
        }
    }
}

impl MessageCopy {
    /// Enqueues the copy.
    ///
    /// # Safety
    /// The message may be read where it lies until the copy has run. The memory for copies stays
    /// until then, and as long as a graph that has captured the copy is launched, and nothing else
    /// uses it meanwhile.
    pub(super) unsafe fn enqueue(&self, stream: &CudaStream) -> Result<(), gpu::Error> {
        // SAFETY: the message may be read, and nothing else uses its place in the memory for copies
        // (this function's contract). That was allocated for the copies, apart from any message.
        unsafe { copy(stream, self.to, self.from, self.bytes as usize) }?;
        Ok(())
    }
}

/// Has the messages that are sent out of memory where others are received be sent from copies, for
/// which `room` finds memory of a length.
///
/// # Errors
/// [`Error::Invalid`] where two are received into the same memory; those of `room`.
pub(super) fn copied(
    messages: &mut [Message],
    room: impl FnOnce(u64) -> Result<u64, Error>,
) -> Result<Vec<MessageCopy>, Error> {
    let of = |way| {
        let places = (0..messages.len()).filter(|&place| messages[place].way == way);
        let places: Vec<_> = places.collect();
        let parts = places.iter().map(|&place| {
            let Message { address, bytes, .. } = messages[place];
            address as usize..(address + bytes) as usize
        });
        let parts: Vec<_> = parts.collect();
        (places, parts)
    };
    let (sends, read) = of(MessageDirection::Send);
    let (receives, written) = of(MessageDirection::Receive);
    let overwritten = overwritten(&read, &written)
        .map_err(|pair| overlap(pair.map(|place| messages[receives[place]])))?;
    let overwritten: Vec<_> = overwritten.into_iter().map(|place| sends[place]).collect();
    let mut bytes = 0;
    let starts: Vec<_> = overwritten
        .iter()
        .map(|&place| {
            let start = bytes;
            bytes += messages[place].bytes.next_multiple_of(ALIGNMENT);
            start
        })
        .collect();
    if overwritten.is_empty() {
        return Ok(Vec::new());
    }
    let room = room(bytes)?;
    let copies = overwritten.iter().zip(starts).map(|(&place, start)| {
        let message = &mut messages[place];
        let from = std::mem::replace(&mut message.address, room + start);
        MessageCopy {
            to: message.address,
            from,
            bytes: message.bytes,
        }
    });
    Ok(copies.collect())
}

fn overlap(both: [Message; 2]) -> Error {
    let [one, other] = both.map(|message| {
        let Message {
            peer,
            address,
            bytes,
            ..
        } = message;
        format!("from rank {peer} ({bytes} bytes at {address:#x})")
    });
    Error::Invalid {
        operation: "group",
        problem: format!(
            "the receive buffers of the messages {one} and {other} overlap: each message needs a \
             place of its own (send buffers may overlap)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(way: MessageDirection, address: u64, bytes: u64) -> Message {
        Message {
            way,
            peer: 1,
            address,
            bytes,
            words: [0; 2],
        }
    }

    #[test]
    fn only_what_is_overwritten_is_copied() {
        use MessageDirection::{Receive, Send};
        let given = [
            message(Send, 1000, 300),
            message(Receive, 1200, 50),
            message(Send, 1250, 50),
            message(Send, 1100, 101),
            message(Receive, 2000, 0),
        ];
        let mut messages = given;
        let copies = copied(&mut messages, |bytes| {
            assert_eq!(bytes, 512 + 256);
            Ok(1 << 20)
        });
        let starts = [0, 512].map(|start| (1 << 20) + start);
        let copies: Vec<_> = copies.unwrap();
        let expected = [(starts[0], 1000, 300), (starts[1], 1100, 101)];
        let expected = expected.map(|(to, from, bytes)| MessageCopy { to, from, bytes });
        assert_eq!(copies, expected);
        let seen = messages.map(|message| message.address);
        assert_eq!(seen, [starts[0], 1200, 1250, starts[1], 2000]);
        let mut apart = [given[1], given[2]];
        let copies = copied(&mut apart, |_| unreachable!("nothing is copied"));
        assert_eq!(copies.unwrap(), []);
    }

    #[test]
    fn messages_that_are_received_into_the_same_memory_are_named() {
        let mut messages = [(100, 50), (149, 1)]
            .map(|(address, bytes)| message(MessageDirection::Receive, address, bytes));
        let said = copied(&mut messages, |_| unreachable!("nothing is copied")).unwrap_err();
        let said = said.to_string();
        assert!(said.contains("(50 bytes at 0x64)"), "{said}");
        assert!(said.contains("(1 bytes at 0x95)"), "{said}");
    }
}
