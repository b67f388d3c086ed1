//! The errors of this crate, and NCCL's results.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cudarc::nccl::sys::ncclResult_t;

use crate::{ArgumentError, Version};

/// Why a call of this crate failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// libnccl could not be loaded.
    #[error(
        "NCCL was not found ({}); install it (NVIDIA's package libnccl2, or pip install \
         nvidia-nccl-cu12), or say where libnccl.so.2 is with SPARK_CCL_NCCL_LIBRARY",
        listed(tried)
    )]
    Library {
        /// The attempts, each with its reason.
        tried: Vec<Refusal>,
    },
    /// The library lacks a function that every NCCL has.
    #[error(
        "{} has no function {symbol}: it is not NCCL, or one older than {}; install a newer one",
        path.display(), Version::OLDEST
    )]
    Symbol {
        /// The library.
        path: PathBuf,
        /// The function.
        symbol: &'static str,
    },
    /// The library is older than the oldest supported version.
    #[error(
        "{} is NCCL {found}; install {} or newer", path.display(), Version::OLDEST
    )]
    TooOld {
        /// The library.
        path: PathBuf,
        /// Its version.
        found: Version,
    },
    /// The library is too old for the request.
    #[error("{what} is not in NCCL {found}; it needs {since} or newer")]
    Unsupported {
        /// A function, a data type, or a field of [`Config`](crate::Config).
        what: &'static str,
        /// The first version that supports it.
        since: Version,
        /// The library's version.
        found: Version,
    },
    /// NCCL returned an error.
    #[error(transparent)]
    Call(#[from] Box<CallError>),
    /// An argument was wrong; NCCL was not called.
    #[error("{operation}{}: {error}", on(*rank))]
    Argument {
        /// The function.
        operation: &'static str,
        /// This rank, if it is known.
        rank: Option<usize>,
        /// The problem.
        error: ArgumentError,
    },
    /// A nonblocking communicator was not ready in time. It can only be aborted.
    #[error(
        "{operation}{}: not done after {waited:?}; is a rank missing, or stuck? Abort the \
         communicator, or give Config::timeout more time",
        on(*rank)
    )]
    Timeout {
        /// The function.
        operation: &'static str,
        /// This rank, if it is known.
        rank: Option<usize>,
        /// The time that this waited.
        waited: Duration,
    },
    /// The communicator can no longer do this.
    #[error(
        "{operation}{}: the communicator has {}; abort it and make another",
        on(*rank),
        if *revoked { "been revoked" } else { "failed before" }
    )]
    Unusable {
        /// This rank, if it is known.
        operation: &'static str,
        /// This rank, if it is known.
        rank: Option<usize>,
        /// Whether it was revoked.
        revoked: bool,
    },
    /// The communicator, or the object to create, belongs to a group that has not ended.
    #[error("{operation}: cannot be done {}", if *in_other_thread {
        "while another thread has a group with this communicator"
    } else {
        "in a group; end it first"
    })]
    Grouped {
        /// The function.
        operation: &'static str,
        /// Whether the group belongs to another thread.
        in_other_thread: bool,
    },
}

impl Error {
    /// NCCL's result, if NCCL returned an error.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Call(call) => Some(call.code),
            _ => None,
        }
    }

    /// Whether NCCL may still work on the call, until the communicator is aborted.
    pub fn goes_on(&self) -> bool {
        matches!(self, Self::Timeout { .. }) || self.code() == Some(Code::IN_PROGRESS)
    }

    /// Whether the library is too old for the request.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::Unsupported { .. })
    }
}

/// A library that could not be loaded, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The path, or the name passed to the system's loader.
    pub path: PathBuf,
    /// The loader's reason.
    pub reason: String,
}

impl Refusal {
    pub(crate) fn new(path: &Path, error: &libloading::Error) -> Self {
        // The wrapped error is the loader's own message.
        let reason =
            std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
        Self {
            path: path.to_owned(),
            reason,
        }
    }
}

fn listed(tried: &[Refusal]) -> String {
    let each = tried
        .iter()
        .map(|refusal| format!("{}: {}", refusal.path.display(), refusal.reason));
    each.collect::<Vec<_>>().join("; ")
}

/// An error that NCCL returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallError {
    /// The function.
    pub operation: &'static str,
    /// This rank, if it is known.
    pub rank: Option<usize>,
    /// The result.
    pub code: Code,
    /// NCCL's text for the result.
    pub text: String,
    /// NCCL's description of the last error in this process, which may be about another call. Empty
    /// if there was none.
    pub last_error: String,
}

impl std::error::Error for CallError {}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            operation,
            code,
            text,
            ..
        } = self;
        write!(f, "{operation}{}: {text} ({code})", on(self.rank))?;
        match self.last_error.trim() {
            "" => f.write_str("; NCCL_DEBUG=WARN may tell more"),
            last => write!(f, "; {last}"),
        }
    }
}

fn on(rank: Option<usize>) -> String {
    rank.map_or_else(String::new, |rank| format!(" on rank {rank}"))
}

/// NCCL's result of a call; may be a value that this crate does not list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Code(pub u32);

impl Code {
    /// The call succeeded.
    pub const SUCCESS: Self = Self(ncclResult_t::ncclSuccess as u32);
    /// A call of CUDA failed.
    pub const CUDA: Self = Self(ncclResult_t::ncclUnhandledCudaError as u32);
    /// A call of the operating system failed.
    pub const SYSTEM: Self = Self(ncclResult_t::ncclSystemError as u32);
    /// A bug in NCCL, or corrupted memory.
    pub const INTERNAL: Self = Self(ncclResult_t::ncclInternalError as u32);
    /// An argument was wrong. The call had no effect.
    pub const INVALID_ARGUMENT: Self = Self(ncclResult_t::ncclInvalidArgument as u32);
    /// The call is not allowed in this state.
    pub const INVALID_USAGE: Self = Self(ncclResult_t::ncclInvalidUsage as u32);
    /// A peer or the network failed.
    pub const REMOTE: Self = Self(ncclResult_t::ncclRemoteError as u32);
    /// Not done yet.
    pub const IN_PROGRESS: Self = Self(ncclResult_t::ncclInProgress as u32);
    /// NCCL's own time limit passed.
    pub const TIMEOUT: Self = Self(ncclResult_t::ncclTimeout as u32);

    /// Its name in C.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SUCCESS => "ncclSuccess",
            Self::CUDA => "ncclUnhandledCudaError",
            Self::SYSTEM => "ncclSystemError",
            Self::INTERNAL => "ncclInternalError",
            Self::INVALID_ARGUMENT => "ncclInvalidArgument",
            Self::INVALID_USAGE => "ncclInvalidUsage",
            Self::REMOTE => "ncclRemoteError",
            Self::IN_PROGRESS => "ncclInProgress",
            Self::TIMEOUT => "ncclTimeout",
            _ => "unknown result",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name(), self.0)
    }
}
