//! Exit codes, and the errors that any command may have.

use std::fmt::Display;
use std::io;

/// The exit codes, numbered as in nccl-tests.
pub mod exit {
    /// Something does not work.
    pub const UNSOUND: u8 = 1;
    /// A system call failed (nccl-tests: CUDA).
    pub const SYSTEM: u8 = 2;
    /// The library reported an error.
    pub const LIBRARY: u8 = 3;
    /// An operation, or the start, exceeded its deadline.
    pub const TIMEOUT: u8 = 4;
    /// A feature of nccl-tests that spark-perf lacks.
    pub const NOT_IMPLEMENTED: u8 = 5;
    /// Invalid arguments.
    pub const USAGE: u8 = 6;
    /// Wrong data, or less bandwidth than `NCCL_TESTS_MIN_BW` requires.
    pub const WRONG: u8 = 7;
}

/// An error that ends a command.
pub trait Failure: Display {
    /// The exit code of the command: one of [`exit`].
    fn exit_code(&self) -> u8;
}

/// Why any command may end early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Invalid arguments, or arguments that this machine cannot satisfy.
    #[error("{0}")]
    Usage(String),
    /// A call of the operating system failed.
    #[error("{what}: {source}")]
    System {
        /// What was attempted.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
}

impl Error {
    /// For `map_err`: adds what was attempted to an error of the system.
    pub fn system<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |source| Self::System {
            what,
            source: source.into(),
        }
    }
}

impl Failure for Error {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => exit::USAGE,
            Self::System { .. } => exit::SYSTEM,
        }
    }
}
