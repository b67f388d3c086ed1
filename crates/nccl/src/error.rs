use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cudarc::nccl::sys::ncclResult_t;

use crate::{ArgumentError, Version};

/// Why something of this crate failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// NCCL could not be opened.
    #[error(
        "NCCL was not found ({}); install it (NVIDIA's package libnccl2, or pip install \
         nvidia-nccl-cu12), or say where libnccl.so.2 is with SPARK_CCL_NCCL_LIBRARY",
        listed(tried)
    )]
    Library {
        /// What was tried, and how each try failed.
        tried: Vec<Refusal>,
    },
    /// What was opened lacks a function that every NCCL has.
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
    /// The library is older than all that work.
    #[error(
        "{} is NCCL {found}; install {} or newer", path.display(), Version::OLDEST
    )]
    TooOld {
        /// The library.
        path: PathBuf,
        /// Its version.
        found: Version,
    },
    /// The library is older than what was asked of it.
    #[error("{what} is not in NCCL {found}; it needs {since} or newer")]
    Unsupported {
        /// A function, a data type, or a field of [`Config`](crate::Config).
        what: &'static str,
        /// The first version that has it.
        since: Version,
        /// The version here.
        found: Version,
    },
    /// A call of NCCL failed.
    #[error(transparent)]
    Call(#[from] Box<CallError>),
    /// An argument was wrong; nothing was called.
    #[error("{operation}{}: {error}", on(*rank))]
    Argument {
        /// The function.
        operation: &'static str,
        /// The rank here, where it is known.
        rank: Option<usize>,
        /// What was wrong.
        error: ArgumentError,
    },
    /// A communicator that does not block was not ready in time. It can only be aborted.
    #[error(
        "{operation}{}: not done after {waited:?}; is a rank missing, or stuck? Abort the \
         communicator, or give Config::timeout more time",
        on(*rank)
    )]
    Timeout {
        /// The function.
        operation: &'static str,
        /// The rank here, where it is known.
        rank: Option<usize>,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The communicator cannot do this any more.
    #[error(
        "{operation}{}: the communicator has {}; abort it and make another",
        on(*rank),
        if *revoked { "been revoked" } else { "failed before" }
    )]
    Unusable {
        /// The function.
        operation: &'static str,
        /// The rank here, where it is known.
        rank: Option<usize>,
        /// Whether it was revoked.
        revoked: bool,
    },
    /// The communicator, or what is to be made, belongs to a group that has not ended.
    #[error("{operation}: cannot be done {}", if *elsewhere {
        "while another thread has a group with this communicator"
    } else {
        "in a group; end it first"
    })]
    Grouped {
        /// The function.
        operation: &'static str,
        /// Whether the group is another thread's.
        elsewhere: bool,
    },
}

impl Error {
    /// NCCL's result, if a call of it failed.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Call(call) => Some(call.code),
            _ => None,
        }
    }

    /// Whether NCCL goes on with the call, which it may do until its communicator is aborted.
    pub fn goes_on(&self) -> bool {
        matches!(self, Self::Timeout { .. }) || self.code() == Some(Code::IN_PROGRESS)
    }

    /// Whether the library is too old for what was asked.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::Unsupported { .. })
    }
}

/// A library that could not be opened, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The path, or the name that the system's loader was asked for.
    pub path: PathBuf,
    /// The loader's reason.
    pub reason: String,
}

impl Refusal {
    pub(crate) fn new(path: &Path, error: &libloading::Error) -> Self {
        // The loader's own words are the source.
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

/// A failed call of NCCL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallError {
    /// The function.
    pub operation: &'static str,
    /// The rank here, where it is known.
    pub rank: Option<usize>,
    /// The result.
    pub code: Code,
    /// NCCL's words for the result.
    pub text: String,
    /// NCCL's account of the last error of this process; it may be of another call, and is empty if
    /// there is none.
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

/// NCCL's result of a call, also one that this crate does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Code(pub u32);

impl Code {
    /// All went well.
    pub const SUCCESS: Self = Self(ncclResult_t::ncclSuccess as u32);
    /// A call of CUDA failed.
    pub const CUDA: Self = Self(ncclResult_t::ncclUnhandledCudaError as u32);
    /// A call of the operating system failed.
    pub const SYSTEM: Self = Self(ncclResult_t::ncclSystemError as u32);
    /// A mistake in NCCL, or memory that was overwritten.
    pub const INTERNAL: Self = Self(ncclResult_t::ncclInternalError as u32);
    /// An argument was wrong. The call had no effect.
    pub const INVALID_ARGUMENT: Self = Self(ncclResult_t::ncclInvalidArgument as u32);
    /// The call was wrong there and then.
    pub const INVALID_USAGE: Self = Self(ncclResult_t::ncclInvalidUsage as u32);
    /// A peer failed, or the network.
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
