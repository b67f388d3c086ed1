//! The ranks that a state was made for, and their shares of it.

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
}
