//! Which calls are alike for NCCL: before the first one of each key, it may connect the ranks. A
//! pure function of a call.

use spark_ccl_types::{DType, Operation, Signature};

/// Calls for which NCCL makes the same connections, as far as can be told: it chooses by the type,
/// the reduction and the number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ConnectionKey {
    operation: Operation,
    dtype: DType,
    op: u8,
    root: u32,
    magnitude: u8,
}

impl ConnectionKey {
    /// `None` for messages between two ranks: others know nothing of them.
    pub(super) fn of(signature: Signature) -> Option<Self> {
        let operation = signature.operation;
        let bytes = signature.bytes();
        (!operation.is_of_pairs()).then(|| Self {
            operation,
            dtype: signature.dtype,
            op: signature.op,
            root: signature.root,
            magnitude: bytes.checked_ilog2().map_or(0, |log| log as u8 + 1),
        })
    }

    /// The key in one word.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn signature(operation: Operation, count: u64) -> Signature {
        Signature::plain(operation, DType::F32, count)
    }

    #[test]
    fn kinds_are_powers_of_two_of_bytes() {
        let of = |count| ConnectionKey::of(signature(Operation::AllReduce, count)).unwrap();
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
        let word = |signature| ConnectionKey::of(signature).unwrap().word();
        for other in others {
            assert_ne!(word(base), word(other));
        }
        assert!(ConnectionKey::of(signature(Operation::SendRecv, 8)).is_none());
    }
}
