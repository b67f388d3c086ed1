//! The launcher's error type.

use std::time::Duration;

/// Why the launcher could not be determined, or its key-value space not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A variable has an invalid value.
    #[error("{variable}={value:?}: expected {expected}")]
    Invalid {
        /// The variable's name.
        variable: String,
        /// Its value.
        value: String,
        /// The valid values.
        expected: String,
    },
    /// A launcher set some of its variables, but not this one.
    #[error("{variable} is not set, although {because}: {hint}")]
    Missing {
        /// The variable's name.
        variable: String,
        /// The reason why it is necessary.
        because: String,
        /// The remedy.
        hint: String,
    },
    /// The variables of two launchers contradict each other.
    #[error(
        "{first} and {second} contradict each other: start the ranks with one launcher, \
         or unset the variables of the other"
    )]
    Contradiction {
        /// One variable and its value.
        first: String,
        /// The other variable and its value.
        second: String,
    },
    /// A file that a variable names cannot be read.
    #[error("{variable}={path}: {source}")]
    File {
        /// The variable's name.
        variable: String,
        /// Its value.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The PMIx library cannot be opened.
    #[error(
        "this process was started through PMIx, but its library cannot be opened ({tried}): \
         install it (Debian and Ubuntu: libpmix2), or set MASTER_ADDR, MASTER_PORT and \
         SPARK_CCL_SECRET on all ranks"
    )]
    NoPmix {
        /// Each file name that was tried, with the loader's error.
        tried: String,
    },
    /// The launcher's key-value space failed.
    #[error("{space}: {operation}: {reason}")]
    Space {
        /// Which space, and where.
        space: String,
        /// The operation.
        operation: String,
        /// The failure.
        reason: String,
    },
    /// An operation on the key-value space did not finish in time.
    #[error("{space}: {operation}: gave up after {:.1} s: {reason}", .waited.as_secs_f64())]
    Timeout {
        /// Which space, and where.
        space: String,
        /// The operation.
        operation: String,
        /// How long it took.
        waited: Duration,
        /// The condition that was not met.
        reason: String,
    },
}

impl Error {
    /// The failure of an operation on a key-value space.
    pub(crate) fn of_space(
        space: impl Into<String>,
        operation: impl Into<String>,
        reason: String,
    ) -> Self {
        Self::Space {
            space: space.into(),
            operation: operation.into(),
            reason,
        }
    }
}
