use std::time::Duration;

/// Why a launch could not be understood, or its key-value space not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A variable holds what it cannot hold.
    #[error("{variable}={value:?}: expected {expected}")]
    Invalid {
        /// The variable's name.
        variable: String,
        /// What it holds.
        value: String,
        /// What it may hold.
        expected: String,
    },
    /// A launcher set some of its variables, but not this one.
    #[error("{variable} is not set, although {because}: {hint}")]
    Missing {
        /// The variable's name.
        variable: String,
        /// What makes it necessary.
        because: String,
        /// What to do.
        hint: String,
    },
    /// Two launchers say different things.
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
        /// What it holds.
        path: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// The PMIx library cannot be opened.
    #[error(
        "this process was started through PMIx, but its library cannot be opened ({tried}): install \
         it (Debian and Ubuntu: libpmix2), or set MASTER_ADDR, MASTER_PORT and SPARK_CCL_SECRET on all ranks"
    )]
    NoPmix {
        /// Each file name that was tried, with what the loader says.
        tried: String,
    },
    /// The launcher's key-value space failed.
    #[error("{space}: {operation}: {reason}")]
    Space {
        /// Which one, and where.
        space: String,
        /// What was being done.
        operation: String,
        /// What happened.
        reason: String,
    },
    /// Something did not happen in time.
    #[error("{space}: {operation}: gave up after {:.1} s: {reason}", .waited.as_secs_f64())]
    Timeout {
        /// Which space, and where.
        space: String,
        /// What was being done.
        operation: String,
        /// How long it was tried.
        waited: Duration,
        /// What was missing.
        reason: String,
    },
}
