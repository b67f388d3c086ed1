//! An operation on a rank's buffers.

use spark_ccl_types::{Combine, DType, Operation, ReduceOp};

use crate::Error;
use crate::layout::CallLayout;

/// An operation on a rank's buffers, by their addresses on its GPU, of any alignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// What to do: `AllReduce`, `ReduceScatter`, `AllGather` or `AllToAll`.
    pub operation: Operation,
    /// The type of the elements.
    pub dtype: DType,
    /// How elements are reduced, if they are.
    pub op: ReduceOp,
    /// The elements that a rank sends to each other: for `AllReduce`, `AllGather` all of `input`; for
    /// `ReduceScatter` and `AllToAll` a block of it, of which there is one for each rank.
    pub count: usize,
    /// Where the input starts.
    pub input: u64,
    /// Where the output starts. In place, it is `input`; for `ReduceScatter` it is then this rank's
    /// block of the input, and for `AllGather` the input is this rank's block of it.
    pub output: u64,
}

impl Call {
    /// The bytes that a rank sends to each other; of a count that no memory has room for, the most.
    pub(crate) fn bytes(&self) -> u64 {
        self.count.saturating_mul(self.dtype.size()) as u64
    }

    pub(crate) fn layout(&self, ranks: usize) -> Result<CallLayout, Error> {
        let is_shared_out = matches!(
            self.operation,
            Operation::ReduceScatter | Operation::AllToAll
        );
        let is_mean = self.op == ReduceOp::Avg;
        Ok(CallLayout {
            input: self.input,
            output: self.output,
            bytes: self.bytes(),
            stride: if is_shared_out { self.bytes() } else { 0 },
            combine: self.combine()? as u32,
            divisor: if is_mean { ranks as u32 } else { 1 },
            dtype: u32::from(self.dtype.code()),
            unused: 0,
        })
    }

    fn combine(&self) -> Result<Combine, Error> {
        Ok(match self.op {
            ReduceOp::Sum | ReduceOp::Avg => Combine::Sum,
            ReduceOp::Prod => Combine::Prod,
            ReduceOp::Max => Combine::Max,
            ReduceOp::Min => Combine::Min,
            op @ ReduceOp::PreMulSum => return Err(Error::Reduction { op }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_any_size_have_bytes() {
        let of = |count| Call {
            operation: Operation::AllReduce,
            dtype: DType::F32,
            op: ReduceOp::Sum,
            count,
            input: 0,
            output: 0,
        };
        assert_eq!(of(5 << 30).bytes(), 20 << 30);
        assert_eq!(of(usize::MAX / 2).bytes(), u64::MAX);
    }
}
