//! Why a command about hosts ends early.

use std::io;

use spark_ccl_console::{self as console, Failure, exit};

/// The reason why a command ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// An error of any command.
    #[error(transparent)]
    Common(#[from] console::Error),
    /// A host cannot be described.
    #[error("{0}")]
    Host(#[from] spark_ccl_topology::Error),
    /// The text of a file or a host is no description of a host.
    #[error("{from}: {reason}")]
    Unreadable {
        /// The file or host.
        from: String,
        /// What is wrong.
        reason: String,
    },
    /// Nothing could be run on a host.
    #[error("{0}")]
    Remote(String),
}

impl Error {
    /// Invalid arguments, or arguments that this machine cannot satisfy.
    pub(crate) fn usage(why: String) -> Self {
        console::Error::Usage(why).into()
    }

    /// For `map_err`: adds what was attempted to an error of the system.
    pub(crate) fn system<E>(what: impl Into<String>) -> impl FnOnce(E) -> Self
    where
        E: Into<io::Error>,
    {
        let common = console::Error::system(what);
        move |source| common(source).into()
    }
}

impl Failure for Error {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Common(error) => error.exit_code(),
            Self::Host(_) | Self::Unreadable { .. } | Self::Remote(_) => exit::SYSTEM,
        }
    }
}
