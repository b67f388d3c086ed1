//! Errors of training, for programs to match on and for people to read.

use std::fmt;

/// An error of training. One with a [`Culprit`] is the same on all ranks. Others are this rank's
/// own: the other ranks may wait for it in a call, until it ends or aborts its communicator.
///
/// Its `Debug` is its text, too: that is what a `main` which returns the error shows.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call between the ranks failed. After [`spark_ccl::Error::Failed`], make a new communicator
    /// and go on from the last checkpoint.
    #[error("{0}")]
    Call(
        #[from]
        #[source]
        spark_ccl::Error,
    ),
    /// The arguments of a call are invalid, on this rank.
    #[error("{what}: {problem}")]
    Invalid {
        /// The function or type.
        what: &'static str,
        /// Expected and seen.
        problem: String,
    },
    /// A rank has another model: tensors in another order, of another shape, type or number.
    #[error("the ranks have different models: {0}")]
    Model(Culprit),
    /// A rank has other parameters.
    #[error("the ranks have different parameters: {0}")]
    Contents(Culprit),
    /// A rank could not do its part of a call: its framework could not read or write a tensor, or
    /// its arguments are invalid.
    #[error("a rank could not do its part: {0}")]
    Unable(Culprit),
    /// A rank is in another step than the others.
    #[error("the ranks are in different steps: {0}")]
    Step(Culprit),
    /// A rank has made a gradient that is not finite.
    #[error("a gradient is not finite: {0}")]
    NotFinite(Culprit),
    /// A rank could not write or read a checkpoint, or it is not one of this model.
    #[error("a checkpoint: {0}")]
    Checkpoint(Culprit),
    /// The communicator has other ranks than the one that this state was made for.
    #[error(
        "this state belongs to rank {rank} of {size}, and the communicator is rank {seen_rank} of \
         {seen_size}: after `recover`, `shrink` or a restart, go on from the last checkpoint"
    )]
    World {
        /// The rank that the state was made for.
        rank: usize,
        /// Its number of ranks.
        size: usize,
        /// The communicator's rank.
        seen_rank: usize,
        /// The communicator's number of ranks.
        seen_size: usize,
    },
    /// Something failed before, and the ranks' states may differ since.
    #[error(
        "step {step} has failed before, and the ranks may have different states since: go on from \
         the last checkpoint"
    )]
    Stale {
        /// The step that failed.
        step: u64,
    },
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// The fault that has ended the communicator, if that is the cause.
    pub fn fault(&self) -> Option<&spark_ccl::Fault> {
        match self {
            Self::Call(error) => error.fault(),
            _ => None,
        }
    }
}

/// The rank that differs from the others, and in what.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Culprit {
    /// Its rank.
    pub rank: usize,
    /// Its host.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// The name of the tensor, if it is about one.
    pub tensor: Option<String>,
    /// What was expected, and what was seen there.
    pub problem: String,
}

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rank, host, pid, ..
        } = self;
        write!(f, "rank {rank} (process {pid} on {host}): ")?;
        if let Some(tensor) = &self.tensor {
            write!(f, "tensor {tensor:?}: ")?;
        }
        f.write_str(&self.problem)
    }
}
