//! Tags of point-to-point messages.

use std::fmt;

use spark_ccl_types::{DType, Operation, Signature};

/// Point-to-point messages are matched by order, type and count, which their tag spells out. A
/// block of an `all_to_all_v` only matches another block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PairTag(u64);

const COUNT_BITS: u32 = 40;
/// Above the type's code.
const IS_BLOCK: u64 = 1 << 47;

impl PairTag {
    pub(super) fn new(sequence: u64, signature: &Signature) -> Self {
        let count = signature.count & ((1 << COUNT_BITS) - 1);
        let dtype = u64::from(signature.dtype as u8) << COUNT_BITS;
        let is_block = signature.operation == Operation::AllToAllV;
        let block = if is_block { IS_BLOCK } else { 0 };
        Self((sequence & 0xffff) << 48 | block | dtype | count)
    }

    /// As a link carries it.
    pub(super) fn bits(self) -> u64 {
        self.0
    }

    pub(super) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The call that sent the message, in the words of [`describe`](spark_ccl_types::describe).
    pub(super) fn call(self) -> String {
        let operation = if self.0 & IS_BLOCK == 0 {
            Operation::Send
        } else {
            Operation::AllToAllV
        };
        format!("{operation}(count {}, {})", self.count(), self.dtype_name())
    }

    /// The message's type and elements; `None` for a type that this version does not know.
    pub(super) fn elements(self) -> Option<(DType, u64)> {
        Some((self.dtype()?, self.count()))
    }

    fn count(self) -> u64 {
        self.0 & ((1 << COUNT_BITS) - 1)
    }

    fn dtype(self) -> Option<DType> {
        DType::from_code((self.0 >> COUNT_BITS) as u8 & 0x7f)
    }

    fn dtype_name(self) -> &'static str {
        self.dtype().map_or("unknown", DType::name)
    }
}

impl fmt::Display for PairTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.0 >> 48;
        write!(
            f,
            "message {number} of {} {} elements",
            self.count(),
            self.dtype_name()
        )
    }
}
