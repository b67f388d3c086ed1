//! The ranks that a state was made for, and their shares of it.

use std::ops::Range;

use spark_ccl::Communicator;

use crate::error::Error;

/// A rank and the number of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct World {
    pub(crate) rank: usize,
    pub(crate) size: usize,
}

impl World {
    pub(crate) fn of(comm: &Communicator) -> Self {
        Self {
            rank: comm.rank(),
            size: comm.size(),
        }
    }

    /// Checks that a communicator has the ranks that the state was made for.
    pub(crate) fn check(self, comm: &Communicator) -> Result<(), Error> {
        let seen = Self::of(comm);
        if seen == self {
            return Ok(());
        }
        Err(Error::World {
            rank: self.rank,
            size: self.size,
            seen_rank: seen.rank,
            seen_size: seen.size,
        })
    }

    /// The length of a buffer of `len` elements that is divided into blocks of one size.
    pub(crate) fn padded(self, len: usize) -> usize {
        len.div_ceil(self.size) * self.size
    }

    /// This rank's block of it, without padding. Those of the last ranks may be shorter, or empty.
    pub(crate) fn own(self, len: usize) -> Range<usize> {
        let block = len.div_ceil(self.size);
        let begin = (block * self.rank).min(len);
        begin..(begin + block).min(len)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn blocks_tile_a_buffer(len in 0_usize..1000, size in 1_usize..20) {
            let mut end = 0;
            for rank in 0..size {
                let world = World { rank, size };
                let own = world.own(len);
                prop_assert_eq!(own.start, end);
                // Where `reduce_scatter` leaves it.
                let block = world.padded(len) / size;
                prop_assert!(own.is_empty() || own.start == rank * block);
                prop_assert!(own.len() <= block);
                end = own.end;
            }
            prop_assert_eq!(end, len);
        }
    }
}
