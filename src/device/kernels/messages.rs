//! Tasks as messages between pairs of ranks, and the names of messages in errors.

use spark_ccl_control::DevicePart;
use spark_ccl_gpu::{Message, MessageDirection};
use spark_ccl_types::{Operation, Signature, describe_message};

use crate::task::{Tables, Task};

/// Whether an operation consists of messages between pairs.
pub(super) fn is_of_messages(operation: Operation) -> bool {
    use Operation::{AllToAllV, Recv, Send, SendRecv};
    matches!(operation, Send | Recv | SendRecv | AllToAllV)
}

/// The messages of a task, if it consists of messages. An empty block is a message, too: only so do
/// both ends know that they agree on it.
pub(super) fn messages_of(task: &Task) -> Option<Vec<Message>> {
    let sent = MessageEnd {
        way: MessageDirection::Send,
        peer: task.to as usize,
        begin: 0,
        count: task.input.len,
    };
    let received = MessageEnd {
        way: MessageDirection::Receive,
        peer: task.from as usize,
        begin: 0,
        count: task.output.len,
    };
    let ends = match task.operation() {
        Operation::Send => vec![sent],
        Operation::Recv => vec![received],
        Operation::SendRecv => vec![sent, received],
        Operation::AllToAllV => task.tables.as_deref().map(blocks).unwrap_or_default(),
        _ => return None,
    };
    Some(ends.iter().map(|end| end.message(task)).collect())
}

/// This rank's part in a message.
pub(super) fn part_of(message: &Message) -> DevicePart {
    let peer = message.peer as u32;
    match message.way {
        MessageDirection::Send => DevicePart::SendTo(peer),
        MessageDirection::Receive => DevicePart::ReceiveFrom(peer),
    }
}

/// One end of a message, as a part of a buffer.
struct MessageEnd {
    way: MessageDirection,
    peer: usize,
    /// Where the part begins, in elements.
    begin: usize,
    count: usize,
}

fn blocks(tables: &Tables) -> Vec<MessageEnd> {
    let sides = [
        (MessageDirection::Send, &tables.send),
        (MessageDirection::Receive, &tables.recv),
    ];
    let ends = sides.into_iter().flat_map(|(way, blocks)| {
        let places = blocks.begins.iter().zip(blocks.counts.iter());
        places
            .enumerate()
            .map(move |(peer, (&begin, &count))| MessageEnd {
                way,
                peer,
                begin,
                count,
            })
    });
    ends.collect()
}

impl MessageEnd {
    fn message(&self, task: &Task) -> Message {
        let [input, output] = task.regions().map(|region| region.ptr.addr());
        let start = match self.way {
            MessageDirection::Send => input,
            MessageDirection::Receive => output,
        };
        let size = task.signature.dtype.size();
        Message {
            way: self.way,
            peer: self.peer,
            address: (start + self.begin * size) as u64,
            bytes: (self.count * size) as u64,
            words: self.signature(task).words(),
        }
    }

    /// The message's signature, which both ends have alike: the sender's.
    fn signature(&self, task: &Task) -> Signature {
        let operation = match task.operation() {
            Operation::AllToAllV => Operation::AllToAllV,
            _ => Operation::Send,
        };
        Signature::plain(operation, task.signature.dtype, self.count as u64)
    }
}

/// Describes the signature's words of a message as the receiver's call.
pub(super) fn describe_received(words: [u64; 2]) -> String {
    describe_message(received(words))
}

/// The signature's words of a message as the receiver's call has them.
pub(super) fn received([head, tail]: [u64; 2]) -> [u64; 2] {
    let [send, recv] = [Operation::Send, Operation::Recv].map(|of| u64::from(of.code()));
    let is_send = head & 0xff == send;
    [if is_send { head ^ send ^ recv } else { head }, tail]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use spark_ccl_types::DType;

    use super::*;
    use crate::memory::blocks::Blocks;
    use crate::memory::buffer::Region;
    use crate::task::Spec;

    const SEND_AT: usize = 1 << 20;
    const RECV_AT: usize = 1 << 30;

    fn messages(spec: &Spec, sent: usize, received: usize) -> Option<Vec<Message>> {
        let region = |start, len| Region::host(std::ptr::without_provenance::<u32>(start), len);
        messages_of(&spec.task((region(SEND_AT, sent), region(RECV_AT, received))))
    }

    fn message(
        way: MessageDirection,
        peer: usize,
        begin: usize,
        count: usize,
        words: [u64; 2],
    ) -> Message {
        let start = if way == MessageDirection::Send {
            SEND_AT
        } else {
            RECV_AT
        };
        Message {
            way,
            peer,
            address: (start + 4 * begin) as u64,
            bytes: 4 * count as u64,
            words,
        }
    }

    #[test]
    fn both_ends_sign_alike() {
        let of = |operation| Spec::new(operation, DType::U32).to(1).from(2);
        let sent = messages(&of(Operation::Send), 7, 0).unwrap();
        let received = messages(&of(Operation::Recv), 0, 7).unwrap();
        let words = sent[0].words;
        assert_eq!(sent, [message(MessageDirection::Send, 1, 0, 7, words)]);
        assert_eq!(
            received,
            [message(MessageDirection::Receive, 2, 0, 7, words)]
        );
        let both = messages(&of(Operation::SendRecv), 7, 7).unwrap();
        assert_eq!(both, [sent, received].concat());
        assert_eq!(describe_message(words), "send(count 7, uint32)");
        assert_eq!(describe_received(words), "recv(count 7, uint32)");
        assert_ne!(
            messages(&of(Operation::Send), 8, 0).unwrap()[0].words,
            words
        );
        assert_eq!(messages(&of(Operation::AllToAll), 8, 8), None);
    }

    #[test]
    fn each_block_is_a_message_also_one_of_nothing() {
        let blocks = |counts: &[usize], begins: &[usize]| Blocks::at(counts, begins);
        let spec = Spec {
            tables: Some(Arc::new(Tables {
                send: blocks(&[0, 3, 5], &[0, 4, 10]),
                recv: blocks(&[2, 0, 0], &[6, 0, 0]),
            })),
            ..Spec::new(Operation::AllToAllV, DType::U32)
        };
        let seen = messages(&spec, 20, 20).unwrap();
        let words: Vec<_> = seen.iter().map(|message| message.words).collect();
        let expected = [
            message(MessageDirection::Send, 0, 0, 0, words[0]),
            message(MessageDirection::Send, 1, 4, 3, words[1]),
            message(MessageDirection::Send, 2, 10, 5, words[2]),
            message(MessageDirection::Receive, 0, 6, 2, words[3]),
            message(MessageDirection::Receive, 1, 0, 0, words[4]),
            message(MessageDirection::Receive, 2, 0, 0, words[5]),
        ];
        assert_eq!(seen, expected);
        let described = words.iter().map(|words| describe_received(*words));
        let counts = [0, 3, 5, 2, 0, 0].map(|count| format!("all_to_all_v(count {count}, uint32)"));
        assert!(described.eq(counts));
    }
}
