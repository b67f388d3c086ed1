//! Copies of messages that a receive of the same group writes over: a message may arrive before
//! another one that is read from the same memory has left.

use std::ops::Range;
use std::sync::Arc;

use spark_ccl_cuda::cudarc::driver::CudaStream;
use spark_ccl_cuda::{RecordedEvent, copy};
use spark_ccl_gpu::{self as gpu, Message, MessageDirection};
use spark_ccl_log::Mutex;
use spark_ccl_types::overwritten;

use crate::error::Error;
use crate::memory::device::block::Block;

/// Copies begin where any element may.
const ALIGNMENT: u64 = 256;

/// A rank's memory for copies, on its GPU. One block serves all calls, since they run one after the
/// other; a group that needs a longer block makes one.
#[derive(Debug, Default)]
pub(super) struct CopyMemory(Mutex<Rooms>);

#[derive(Debug, Default)]
struct Rooms {
    current: Option<Room>,
    /// Blocks that graphs have captured.
    captured: Vec<Arc<Block>>,
}

/// A block with room for copies, and its number of bytes.
#[derive(Debug)]
struct Room {
    block: Arc<Block>,
    bytes: u64,
}

/// The copies of a group's messages, and the block that they are in.
#[derive(Debug)]
pub(super) struct Copies {
    pub(super) all: Vec<MessageCopy>,
    block: Arc<Block>,
}

/// A copy that the stream makes before messages are passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MessageCopy {
    to: u64,
    from: u64,
    bytes: u64,
}

impl CopyMemory {
    /// A block for copies of this many bytes, which `make` makes if there is none.
    pub(super) fn of(
        &self,
        bytes: u64,
        make: impl FnOnce(usize) -> Result<Arc<Block>, Error>,
    ) -> Result<Arc<Block>, Error> {
        let long_enough = |room: &&Room| room.bytes >= bytes;
        if let Some(room) = self.0.lock().current.as_ref().filter(long_enough) {
            return Ok(Arc::clone(&room.block));
        }
        let block = make(bytes as usize)?;
        let room = Room {
            block: Arc::clone(&block),
            bytes,
        };
        // A shorter one is freed once nothing uses it.
        let outgrown = self.0.lock().current.replace(room);
        drop(outgrown);
        Ok(block)
    }

    /// Notes that a call has used copies up to its end; `None` if a graph has captured the call.
    pub(super) fn were_used(
        &self,
        copies: &Copies,
        end: &Result<Option<Arc<RecordedEvent>>, spark_ccl_cuda::Error>,
    ) {
        let block = &copies.block;
        match end {
            Ok(Some(end)) => block.was_used_by_a_call(end),
            Ok(None) => {
                let captured = &mut self.0.lock().captured;
                if !captured.iter().any(|other| Arc::ptr_eq(other, block)) {
                    captured.push(Arc::clone(block));
                }
            }
            Err(error) => block.was_lost(error.clone()),
        }
    }
}

impl MessageCopy {
    /// Enqueues the copy.
    ///
    /// # Safety
    /// The message lies where it is read, and nothing writes it, until the copy has run. The memory
    /// for copies stays until then, and as long as a graph that has captured the copy is launched,
    /// and nothing else uses it meanwhile.
    pub(super) unsafe fn enqueue(&self, stream: &CudaStream) -> Result<(), gpu::Error> {
        // SAFETY: the caller lets nothing write the message until the copy has run, and keeps the
        // copy's place, which nothing else uses, also as long as a graph may launch the copy. Both
        // have `bytes` bytes, and the place was allocated apart from any message.
        unsafe { copy(stream, self.to, self.from, self.bytes as usize) }?;
        Ok(())
    }
}

/// Redirects messages whose source another message of the group overwrites: they are sent from
/// copies, in a block that `find` returns for this many bytes. `None` if there are none.
///
/// # Errors
/// [`Error::Invalid`] where two are received into the same memory; those of `find`.
pub(super) fn copied(
    messages: &mut [Message],
    find: impl FnOnce(u64) -> Result<Arc<Block>, Error>,
) -> Result<Option<Copies>, Error> {
    let (places, bytes) = overwritten_sends(messages)?;
    if places.is_empty() {
        return Ok(None);
    }
    let block = find(bytes)?;
    let all = redirect(messages, &places, block.address);
    Ok(Some(Copies { all, block }))
}

/// Refuses messages that are sent out of memory where another communicator of the group receives:
/// nothing orders the kernels of the two, so copies could come too late. Also two that are received
/// into the same memory. `of_each` has the messages of each communicator.
pub(super) fn check_across(of_each: &[&[Message]]) -> Result<(), Error> {
    let of = |way| {
        let numbered = of_each.iter().enumerate();
        let all = numbered.flat_map(|(comm, all)| all.iter().map(move |message| (comm, message)));
        let all: Vec<_> = all.filter(|(_, message)| message.way == way).collect();
        let parts: Vec<_> = all.iter().map(|(_, message)| part(message)).collect();
        (all, parts)
    };
    let (sends, read) = of(MessageDirection::Send);
    let (receives, written) = of(MessageDirection::Receive);
    let overwritten = overwritten(&read, &written)
        .map_err(|pair| overlap(pair.map(|place| *receives[place].1)))?;
    for place in overwritten {
        let (sender, sent) = sends[place];
        let writes = |&&(receiver, received): &&(usize, &Message)| {
            let (read, written) = (part(sent), part(received));
            let meet = written.start < read.end && read.start < written.end;
            receiver != sender && meet && !written.is_empty()
        };
        if let Some((_, received)) = receives.iter().find(writes) {
            return Err(overwritten_across(sent, received));
        }
    }
    Ok(())
}

fn part(message: &Message) -> Range<usize> {
    let start = message.address as usize;
    start..start + message.bytes as usize
}

/// The places of the messages that are to be copied, and how many bytes of memory that takes.
fn overwritten_sends(messages: &[Message]) -> Result<(Vec<usize>, u64), Error> {
    let of = |way| {
        let places = (0..messages.len()).filter(|&place| messages[place].way == way);
        let places: Vec<_> = places.collect();
        let parts: Vec<_> = places.iter().map(|&place| part(&messages[place])).collect();
        (places, parts)
    };
    let (sends, read) = of(MessageDirection::Send);
    let (receives, written) = of(MessageDirection::Receive);
    let overwritten = overwritten(&read, &written)
        .map_err(|pair| overlap(pair.map(|place| messages[receives[place]])))?;
    let places: Vec<_> = overwritten.into_iter().map(|place| sends[place]).collect();
    let bytes = places.iter().map(|&place| room_for(&messages[place]));
    let bytes = bytes.sum();
    Ok((places, bytes))
}

/// Points these messages at copies, one behind the other from the address `to` on.
fn redirect(messages: &mut [Message], places: &[usize], mut to: u64) -> Vec<MessageCopy> {
    let copies = places.iter().map(|&place| {
        let message = &mut messages[place];
        let from = std::mem::replace(&mut message.address, to);
        to += room_for(message);
        MessageCopy {
            to: message.address,
            from,
            bytes: message.bytes,
        }
    });
    copies.collect()
}

fn room_for(message: &Message) -> u64 {
    message.bytes.next_multiple_of(ALIGNMENT)
}

fn overlap(both: [Message; 2]) -> Error {
    let [one, other] = both.map(|message| described(&message));
    Error::Invalid {
        operation: "group",
        problem: format!(
            "the receive buffers of the messages {one} and {other} overlap: each message needs a \
             place of its own (send buffers may overlap)"
        ),
    }
}

fn overwritten_across(sent: &Message, received: &Message) -> Error {
    let (sent, received) = (described(sent), described(received));
    Error::Invalid {
        operation: "group",
        problem: format!(
            "the message {sent} is sent out of memory where another communicator of the group \
             receives the one {received}, and either may come first: receive it into other memory, \
             or put the messages of each communicator into a group of their own"
        ),
    }
}

fn described(message: &Message) -> String {
    let Message {
        peer,
        address,
        bytes,
        ..
    } = message;
    let way = match message.way {
        MessageDirection::Send => "to",
        MessageDirection::Receive => "from",
    };
    format!("{way} rank {peer} ({bytes} bytes at {address:#x})")
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
        let (places, bytes) = overwritten_sends(&messages).unwrap();
        assert_eq!((&places[..], bytes), (&[0, 3][..], 512 + 256));
        let copies = redirect(&mut messages, &places, 1 << 20);
        let starts = [0, 512].map(|start| (1 << 20) + start);
        let expected = [(starts[0], 1000, 300), (starts[1], 1100, 101)];
        let expected = expected.map(|(to, from, bytes)| MessageCopy { to, from, bytes });
        assert_eq!(copies, expected);
        let seen = messages.map(|message| message.address);
        assert_eq!(seen, [starts[0], 1200, 1250, starts[1], 2000]);
        let mut apart = [given[1], given[2]];
        let copies = copied(&mut apart, |_| unreachable!("nothing is copied"));
        assert!(copies.unwrap().is_none());
    }

    #[test]
    fn communicators_do_not_receive_where_others_send() {
        use MessageDirection::{Receive, Send};
        let own = [message(Send, 1000, 300), message(Receive, 1200, 50)];
        let said = |other| check_across(&[&own, &[other]]).map_err(|error| error.to_string());
        assert_eq!(said(message(Receive, 1300, 10)), Ok(()));
        assert_eq!(said(message(Receive, 1100, 0)), Ok(()));
        assert_eq!(said(message(Send, 1000, 200)), Ok(()));
        let both = said(message(Receive, 1290, 20)).unwrap_err();
        for part in ["to rank 1 (300 bytes at 0x3e8)", "(20 bytes at 0x50a)"] {
            assert!(both.contains(part), "{both}");
        }
        assert!(said(message(Send, 1249, 1)).unwrap_err().contains("0x4e1"));
        let twice = said(message(Receive, 1249, 1)).unwrap_err();
        assert!(twice.contains("overlap"), "{twice}");
    }

    #[test]
    fn messages_that_are_received_into_the_same_memory_are_named() {
        let messages = [(100, 50), (149, 1)]
            .map(|(address, bytes)| message(MessageDirection::Receive, address, bytes));
        let said = overwritten_sends(&messages).unwrap_err().to_string();
        assert!(said.contains("(50 bytes at 0x64)"), "{said}");
        assert!(said.contains("(1 bytes at 0x95)"), "{said}");
    }
}
