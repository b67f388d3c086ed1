//! The errors of a run, and their exit codes.

use std::io;

use spark_ccl_console::{self as console, Failure, exit};

/// The reason why a run ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// An error of any command.
    #[error(transparent)]
    Common(#[from] console::Error),
    /// A feature that spark-perf, or this build of it, lacks.
    #[error("{0}")]
    NotImplemented(String),
    /// No RDMA device can be used, and why.
    #[error("no RDMA here: {0}")]
    NoRdma(String),
    /// A rank has no pinned memory, and why.
    #[error("rank {rank}, on {host}, has no memory for --memory pinned: {reason}")]
    NoPinned {
        /// That rank.
        rank: usize,
        /// Its host.
        host: String,
        /// What is missing there.
        reason: String,
    },
    /// RDMA does not work between the ranks.
    #[error("{0}")]
    Rdma(String),
    /// Nothing has moved over the rails for a while.
    #[error(
        "nothing has moved over the rails for {seconds} s: {state}; is the other rank alive, and \
         its cable plugged in? -T sets how long to wait"
    )]
    Stalled {
        /// The time.
        seconds: u64,
        /// The requests in flight.
        state: String,
    },
    /// An error of the library.
    #[error(transparent)]
    Library(#[from] spark_ccl::Error),
    /// A thread of this process panicked: a bug in spark-perf.
    #[error("rank {rank} panicked; this is a defect of spark-perf, please report it")]
    Panicked {
        /// The rank of that thread.
        rank: usize,
    },
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

    /// The error of a build without CUDA, which has no GPUs.
    #[cfg(not(feature = "cuda"))]
    pub(crate) fn without_cuda() -> Self {
        Self::NotImplemented(
            "this spark-perf was built without its feature cuda, and uses no GPUs".to_owned(),
        )
    }
}

impl Failure for Error {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Common(error) => error.exit_code(),
            Self::NotImplemented(_) => exit::NOT_IMPLEMENTED,
            Self::NoRdma(_) | Self::NoPinned { .. } => exit::SYSTEM,
            Self::Library(error) => library_code(error),
            Self::Stalled { .. } => exit::TIMEOUT,
            Self::Rdma(_) | Self::Panicked { .. } => exit::LIBRARY,
        }
    }
}

impl From<spark_ccl_verbs::Error> for Error {
    fn from(error: spark_ccl_verbs::Error) -> Self {
        Self::Rdma(error.to_string())
    }
}

#[cfg(feature = "cuda")]
impl From<spark_ccl_cuda::Error> for Error {
    fn from(error: spark_ccl_cuda::Error) -> Self {
        Self::Library(error.into())
    }
}

fn library_code(error: &spark_ccl::Error) -> u8 {
    use spark_ccl::ExitClass;
    #[cfg(feature = "cuda")]
    if matches!(error, spark_ccl::Error::Nccl(_)) {
        return exit::LIBRARY;
    }
    match error.exit_class() {
        ExitClass::Usage => exit::USAGE,
        ExitClass::Timeout => exit::TIMEOUT,
        ExitClass::System => exit::SYSTEM,
        _ => exit::LIBRARY,
    }
}
