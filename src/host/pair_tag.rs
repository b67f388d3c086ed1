//! Tags of point-to-point messages.

use spark_ccl_types::DType;
use std::fmt;

/// Point-to-point messages are matched by order, type and count, which their tag spells out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PairTag(u64);

const COUNT_BITS: u32 = 40;

impl PairTag {
    pub(super) fn new(sequence: u64, dtype: DType, count: u64) -> Self {
        let count = count & ((1 << COUNT_BITS) - 1);
        Self((sequence & 0xffff) << 48 | u64::from(dtype as u8) << COUNT_BITS | count)
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
        format!("send(count {}, {})", self.count(), self.dtype_name())
    }

    /// The message's type and elements; `None` for a type that this version does not know.
    pub(super) fn elements(self) -> Option<(DType, u64)> {
        Some((self.dtype()?, self.count()))
    }

    fn count(self) -> u64 {
        self.0 & ((1 << COUNT_BITS) - 1)
    }

    fn dtype(self) -> Option<DType> {
        DType::from_code((self.0 >> COUNT_BITS) as u8)
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
