//! Payloads of signals, as bytes.
//!
//! The tags of messages hold only a digest of the call. Where a rank relies on details of its
//! peer's call that the length of a message does not prove, a signal spells them out.

use spark_ccl_sched::Rank;

/// The most words: a payload of this length still fits into a message's header over shared memory.
const MOST: usize = 5;

/// A rank's description, for another one, of their part in an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct CallDetails {
    words: [u64; MOST],
    len: usize,
}

/// Two ranks whose calls differ.
#[derive(Debug)]
pub(super) struct Disagreement {
    pub(super) here: CallDetails,
    pub(super) there: CallDetails,
}

impl CallDetails {
    pub(super) fn new(said: &[u64]) -> Self {
        let (mut words, len) = ([0; MOST], said.len());
        words[..len].copy_from_slice(said);
        Self { words, len }
    }

    /// How many elements a rank sends to the other, and expects from it.
    pub(super) fn counts(sent: u64, expected: u64) -> Self {
        Self::new(&[sent, expected])
    }

    pub(super) fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.words[..self.len])
    }

    /// Reads a peer's words, at most as many as it may send.
    pub(super) fn read(bytes: &[u8]) -> Self {
        let mut details = Self::default();
        for chunk in bytes.chunks_exact(size_of::<u64>()).take(MOST) {
            details.words[details.len] = bytemuck::pod_read_unaligned(chunk);
            details.len += 1;
        }
        details
    }

    /// Describes it for errors, as sent to `peer`.
    pub(super) fn describe(&self, peer: Rank) -> String {
        match self.words[..self.len] {
            [sent, expected] => {
                format!("{sent} elements to rank {peer} and {expected} from it")
            }
            [_, _, allocations, first, second] => {
                let (a, b) = (allocations as u32, allocations >> 32);
                format!("allocations {a} and {b} from bytes {first} and {second} on")
            }
            _ => "nothing more".to_owned(),
        }
    }
}
