//! Before NCCL connects the ranks for a call, they make sure that all are about to make it: NCCL would wait
//! for ever, and cannot be aborted meanwhile.

use super::Engine;
use crate::call::{OutOfPlace, Pending};
use crate::communicator::Communicator;
use crate::error::Error;
use crate::signature::{Operation, Signature, describe};
use spark_ccl_compute::DType;
use spark_ccl_control::{DEVICE, Fault};
use std::sync::Arc;

/// Calls for which NCCL makes the same connections, as far as can be told: it chooses by the type, the reduction
/// and the number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Kind {
    operation: Operation,
    dtype: DType,
    op: u8,
    root: u32,
    magnitude: u8,
}

impl Kind {
    /// `None` for messages between two ranks: others know nothing of them.
    pub(super) fn of(signature: Signature) -> Option<Self> {
        let operation = signature.operation;
        let pairs = [Operation::Send, Operation::Recv, Operation::SendRecv];
        let bytes = signature.count * signature.dtype.size() as u64;
        (!pairs.contains(&operation)).then(|| Self {
            operation,
            dtype: signature.dtype,
            op: signature.op,
            root: signature.root,
            magnitude: bytes.checked_ilog2().map_or(0, |log| log as u8 + 1),
        })
    }
}

impl Kind {
    /// All of it in a word.
    pub(super) fn word(self) -> u64 {
        let small = [
            self.operation as u8,
            self.dtype as u8,
            self.op,
            self.magnitude,
        ];
        u64::from(self.root) << 32 | u64::from(u32::from_le_bytes(small))
    }
}

/// What a rank tells all others: its call's signature.
type Words = Vec<u64>;

/// A meeting under way.
pub(super) struct Meeting {
    engine: Arc<Engine>,
    kind: Kind,
    words: [u64; 2],
    pending: Pending<u64, OutOfPlace<Words, Words>>,
}

impl Meeting {
    pub(super) fn start(
        comm: &Communicator,
        engine: &Arc<Engine>,
        kind: Kind,
        words: [u64; 2],
    ) -> Result<Self, Error> {
        let all = vec![0; words.len() * comm.size()];
        let pending = comm
            .all_gather(words.to_vec(), all)
            .by_any_path()
            .start()
            .map_err(|failed| failed.error)?;
        Ok(Self {
            engine: Arc::clone(engine),
            kind,
            words,
            pending,
        })
    }

    /// Waits for all ranks.
    ///
    /// # Errors
    /// One is late, or gone, or makes another call.
    pub(super) fn wait(self) -> Result<(), Error> {
        let (_, all) = self.pending.wait().map_err(|failed| failed.error)?;
        let (engine, own) = (&self.engine, self.words);
        let other = all.chunks_exact(own.len()).position(|words| words != own);
        let mut state = engine.lock()?;
        let Some(other) = other else {
            state.calls.met.insert(self.kind);
            return Ok(());
        };
        let sequence = DEVICE | (state.calls.count + 1);
        drop(state);
        let words = [all[other * own.len()], all[other * own.len() + 1]];
        engine.watch.raise(Fault::Mismatch {
            sequence,
            rank_a: engine.member(),
            words_a: describe(own),
            rank_b: engine.watch.member(other as u32),
            words_b: describe(words),
        });
        Err(engine.gone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signature(operation: Operation, count: u64) -> Signature {
        Signature {
            operation,
            dtype: DType::F32,
            op: 0,
            in_place: false,
            root: 0,
            count,
            place: 0,
        }
    }

    #[test]
    fn kinds_are_powers_of_two_of_bytes() {
        let of = |count| Kind::of(signature(Operation::AllReduce, count)).unwrap();
        assert_eq!(of(5), of(7));
        assert_ne!(of(7), of(8));
        assert_ne!(of(0), of(1));
        assert_ne!(of(5).word(), of(9).word());
    }

    #[test]
    fn kinds_differ_by_all_that_nccl_chooses_by() {
        let base = signature(Operation::Broadcast, 8);
        let others = [
            Signature { root: 1, ..base },
            Signature { op: 1, ..base },
            Signature {
                dtype: DType::I32,
                ..base
            },
            signature(Operation::Reduce, 8),
        ];
        let word = |signature| Kind::of(signature).unwrap().word();
        for other in others {
            assert_ne!(word(base), word(other));
        }
        assert!(Kind::of(signature(Operation::SendRecv, 8)).is_none());
    }
}
