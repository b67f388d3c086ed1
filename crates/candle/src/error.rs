//! What can go wrong. candle's calls return candle's errors, so these are converted; their texts
//! stay.

use std::path::PathBuf;

/// An error of this crate. It names the rank, and the tensor or what else is wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call of the communicator failed.
    #[error("rank {rank} of {size}: {operation} of {tensor}: {source}")]
    Call {
        /// This rank.
        rank: usize,
        /// The number of ranks.
        size: usize,
        /// The call.
        operation: &'static str,
        /// The tensor's name.
        tensor: String,
        /// The communicator's error.
        source: spark_ccl::Error,
    },
    /// A tensor that a call does not take. Nothing was sent.
    #[error("rank {rank} of {size}: {operation} of {tensor}: {problem}")]
    Tensor {
        /// This rank.
        rank: usize,
        /// The number of ranks.
        size: usize,
        /// The call.
        operation: &'static str,
        /// The tensor's name.
        tensor: String,
        /// Expected and seen.
        problem: String,
    },
    /// Something that the ranks cannot share evenly.
    #[error(
        "rank {rank} of {size}: {what} has {count} {parts}, which {size} ranks cannot share \
         evenly; take a number of ranks that divides {count}"
    )]
    Division {
        /// This rank.
        rank: usize,
        /// The number of ranks.
        size: usize,
        /// What is divided, such as a tensor.
        what: String,
        /// How many parts it has.
        count: usize,
        /// What the parts are.
        parts: &'static str,
    },
    /// A file that cannot be read, or does not have what is needed.
    #[error("{}: {problem}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it, and what was expected.
        problem: String,
    },
    /// A model that this crate does not have.
    #[error("{0}")]
    Model(String),
}

impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        Self::wrap(error)
    }
}
