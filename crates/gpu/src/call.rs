//! An operation on a rank's buffers.

use spark_ccl_slots::{Form, Route};
use spark_ccl_types::{Combine, DType, Extent, Operation, ReduceOp, Reduction, Scale, Side};

use crate::Error;
use crate::layout::{CallLayout, Scaling};

/// An operation on a rank's buffers, given by their addresses on its GPU, of any alignment. Only
/// the root touches a buffer that only the root has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// `AllReduce`, `ReduceScatter`, `AllGather`, `AllToAll`, `Broadcast`, `Reduce`, `Gather` or
    /// `Scatter`.
    pub operation: Operation,
    /// The type of the elements.
    pub dtype: DType,
    /// The reduction of elements, if there is one.
    pub op: ReduceOp,
    /// This rank's factor, for [`ReduceOp::PreMulSum`]: the bits of an element, in the lowest
    /// bytes; or the factor's address.
    pub factor: u64,
    /// Whether `factor` is the address of the factor, which the kernel reads.
    pub is_factor_in_memory: bool,
    /// The root's rank, if there is one.
    pub root: usize,
    /// The elements of the shorter buffer. If the other buffer has a block for each rank, this one
    /// is a block.
    pub count: usize,
    /// Where the input starts. In place, the shorter buffer is this rank's block of the other one.
    pub input: u64,
    /// Where the output starts.
    pub output: u64,
    /// Whether the caller has passed a single buffer.
    pub in_place: bool,
    /// The words that must be equal on all ranks; otherwise all fail with [`Error::Mismatch`].
    pub words: [u64; 2],
}

impl Call {
    /// The bytes that a rank sends to each other rank, saturated for counts that exceed any memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.count.saturating_mul(self.dtype.size()) as u64
    }

    pub(crate) fn layout(&self, rank: usize, ranks: usize) -> Result<CallLayout, Error> {
        if self.operation.is_rooted() && self.root >= ranks {
            return Err(Error::Root {
                rank,
                root: self.root,
                ranks,
            });
        }
        let (scaling, factor, divisor) = self.arithmetic(ranks);
        let route = Route::new(self.operation, Form::Direct, rank, self.root, ranks);
        Ok(CallLayout {
            input: self.input,
            output: self.output,
            bytes: self.bytes(),
            input_stride: self.stride(Side::Input),
            output_stride: self.stride(Side::Output),
            words: self.words,
            factor,
            scaling: scaling as u32,
            combine: self.combine() as u32,
            divisor,
            dtype: u32::from(self.dtype.code()),
            to: route.to[0],
            from: route.from[0],
        })
    }

    /// Which elements have a factor, its bits, and the divisor of the results.
    fn arithmetic(&self, ranks: usize) -> (Scaling, u64, u32) {
        if !self.operation.reduces() {
            return (Scaling::Plain, 0, 1);
        }
        let reduction = Reduction::of(self.dtype, self.op, self.factor.to_ne_bytes(), ranks as u32);
        // There are at most 8 ranks.
        let divisor = reduction.divisor.unwrap_or(1) as u32;
        match reduction.scale {
            _ if self.has_factor_in_memory() => (Scaling::OwnInMemory, self.factor, divisor),
            Scale::Unrounded(factor) => (Scaling::Shared, factor.to_bits(), divisor),
            Scale::Float(_) | Scale::Int(_) => (Scaling::Own, self.factor, divisor),
            Scale::One => (Scaling::Plain, 0, divisor),
        }
    }

    /// Whether the kernel reads a factor from memory.
    fn has_factor_in_memory(&self) -> bool {
        self.is_factor_in_memory && self.op == ReduceOp::PreMulSum && self.operation.reduces()
    }

    /// The bytes of a factor in memory; 0 if the call has the factor itself.
    pub(crate) fn factor_bytes(&self) -> u64 {
        if self.has_factor_in_memory() {
            self.dtype.size() as u64
        } else {
            0
        }
    }

    /// The distance between the blocks of two adjacent ranks, in bytes.
    pub(crate) fn stride(&self, side: Side) -> u64 {
        match self.operation.extent(side) {
            Extent::Blocks => self.bytes(),
            _ => 0,
        }
    }

    fn combine(&self) -> Combine {
        match self.op {
            ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum => Combine::Sum,
            ReduceOp::Prod => Combine::Prod,
            ReduceOp::Max => Combine::Max,
            ReduceOp::Min => Combine::Min,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: Call = Call {
        operation: Operation::AllReduce,
        dtype: DType::F32,
        op: ReduceOp::Sum,
        factor: 0,
        is_factor_in_memory: false,
        root: 0,
        count: 0,
        input: 0,
        output: 0,
        in_place: false,
        words: [0; 2],
    };

    #[test]
    fn counts_of_any_size_have_bytes() {
        let of = |count| Call { count, ..CALL };
        assert_eq!(of(5 << 30).bytes(), 20 << 30);
        assert_eq!(of(usize::MAX / 2).bytes(), u64::MAX);
    }

    #[test]
    fn input_goes_to_the_ranks_that_take_it() {
        use Operation::{AllGather, AllToAll, Broadcast, Gather, Reduce, ReduceScatter, Scatter};
        const ROOT: usize = 2;
        let of = |operation, rank| {
            let root = ROOT;
            let call = Call {
                operation,
                root,
                count: 6,
                ..CALL
            };
            let layout = call.layout(rank, 4).unwrap();
            let [to, from] = [layout.to, layout.from];
            (to, from, layout.input_stride, layout.output_stride)
        };
        for rank in [0, 3] {
            assert_eq!(of(AllGather, rank), (0b1111, 0b1111, 0, 24));
            assert_eq!(of(AllToAll, rank), (0b1111, 0b1111, 24, 24));
            assert_eq!(of(ReduceScatter, rank), (0b1111, 0b1111, 24, 0));
            assert_eq!(of(Broadcast, rank), (0, 0b100, 0, 0));
            assert_eq!(of(Scatter, rank), (0, 0b100, 24, 0));
            assert_eq!(of(Reduce, rank), (0b100, 0, 0, 0));
            assert_eq!(of(Gather, rank), (0b100, 0, 0, 24));
        }
        assert_eq!(of(Broadcast, ROOT), (0b1111, 0b100, 0, 0));
        assert_eq!(of(Scatter, ROOT), (0b1111, 0b100, 24, 0));
        assert_eq!(of(Reduce, ROOT), (0b100, 0b1111, 0, 0));
        assert_eq!(of(Gather, ROOT), (0b100, 0b1111, 0, 24));
    }

    #[test]
    fn a_root_is_one_of_the_ranks() {
        let with = |operation| Call {
            operation,
            root: 4,
            ..CALL
        };
        assert!(with(Operation::AllReduce).layout(0, 4).is_ok());
        let said = with(Operation::Reduce).layout(1, 4).unwrap_err();
        let root = Error::Root {
            rank: 1,
            root: 4,
            ranks: 4,
        };
        assert_eq!(said, root);
    }
}
