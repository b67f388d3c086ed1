//! The result that a collective should have.

use spark_ccl_types::{Operation, Side};

use super::Case;
use crate::step::Rank;

/// The positions of a rank's buffers in its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Layout {
    /// The first element and the number of elements of the input.
    pub input: (u64, u64),
    /// The first element and the number of elements of the output.
    pub output: (u64, u64),
}

/// The value that an output element should have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// Input element `index` of `rank`.
    Copy {
        /// The rank of the input.
        rank: Rank,
        /// The index of the element.
        index: u64,
    },
    /// Input element `index` of all ranks, reduced.
    Total {
        /// The index of the element.
        index: u64,
    },
    /// The contents from before the collective.
    Same,
}

/// The initial memory of a collective, and the result that it should have.
pub trait Goal {
    /// The memory of a rank.
    fn layout(&self, rank: Rank) -> Layout;

    /// The value that output element `index` of `rank` should have.
    fn want(&self, rank: Rank, index: u64) -> Want;

    /// Whether contributions are reduced.
    fn reduces(&self) -> bool;
}

impl Goal for Case {
    fn layout(&self, rank: Rank) -> Layout {
        let shape = self.shape(rank);
        let input = shape.elements(self.operation, Side::Input);
        let output = shape.elements(self.operation, Side::Output);
        let own_block = u64::from(rank) * self.count;
        let (input_at, output_at) = match self.operation.own_block() {
            // Separate memory, or a buffer that this rank does not have.
            _ if !self.in_place || input == 0 || output == 0 => (0, input),
            Some(Side::Input) => (own_block, 0),
            Some(Side::Output) => (0, own_block),
            None => (0, 0),
        };
        Layout {
            input: (input_at, input),
            output: (output_at, output),
        }
    }

    fn want(&self, rank: Rank, index: u64) -> Want {
        let own_block = u64::from(rank) * self.count;
        let block = self.count.max(1);
        let owner = |index: u64| (index / block) as Rank;
        match self.operation {
            Operation::AllReduce | Operation::Reduce => Want::Total { index },
            Operation::ReduceScatter => Want::Total {
                index: own_block + index,
            },
            Operation::Broadcast => Want::Copy {
                rank: self.root,
                index,
            },
            Operation::Scatter => Want::Copy {
                rank: self.root,
                index: own_block + index,
            },
            Operation::AllGather | Operation::Gather => Want::Copy {
                rank: owner(index),
                index: index % block,
            },
            // In place nothing copies the own block, which is already in its position.
            Operation::AllToAll => Want::Copy {
                rank: owner(index),
                index: own_block + index % block,
            },
            // They have no schedule, or move nothing.
            Operation::Barrier
            | Operation::Alloc
            | Operation::AllToAllV
            | Operation::Send
            | Operation::Recv
            | Operation::SendRecv => Want::Same,
        }
    }

    fn reduces(&self) -> bool {
        self.operation.reduces()
    }
}
