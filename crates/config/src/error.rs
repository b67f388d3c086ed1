//! The errors of settings.

use std::path::PathBuf;

use crate::env::Origin;

/// Why a setting cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A value that is not allowed.
    #[error("{name}={value:?} (from {origin}) is not valid: expected {expected}")]
    Invalid {
        /// The variable.
        name: String,
        /// Its value; never a secret.
        value: String,
        /// Where the value is from.
        origin: Origin,
        /// The allowed values.
        expected: String,
    },
    /// Values that are valid, but not together.
    #[error("{values} exclude each other: {problem}")]
    Conflict {
        /// The variables, with values and origins.
        values: String,
        /// The reason and the remedy.
        problem: &'static str,
    },
    /// A variable of ours that the program sets, and that does not exist.
    #[error("{name} (from {origin}) is unknown{hint}")]
    Unknown {
        /// The variable.
        name: String,
        /// Where it was set.
        origin: Origin,
        /// Suggests another name, or is empty.
        hint: String,
    },
    /// A secret that cannot be read or used.
    #[error("{name} (from {origin}): {reason}")]
    Secret {
        /// The variable.
        name: String,
        /// Where the value is from.
        origin: Origin,
        /// The problem and its remedy.
        reason: String,
    },
    /// A file that a variable names cannot be read.
    #[error("{name} (from {origin}): {}: {reason}", path.display())]
    File {
        /// The variable.
        name: String,
        /// Where the value is from.
        origin: Origin,
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
}
