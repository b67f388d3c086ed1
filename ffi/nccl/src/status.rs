//! Result codes, and the words for them.

use std::ffi::{CStr, c_int};

use spark_ccl_abi::failure::{Code, Failure, Kind, guarded};
use spark_ccl_abi::groups::Progress;

/// `ncclResult_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// `ncclSuccess`.
    Success = 0,
    /// `ncclUnhandledCudaError`.
    Cuda = 1,
    /// `ncclSystemError`.
    System = 2,
    /// `ncclInternalError`.
    Internal = 3,
    /// `ncclInvalidArgument`.
    Argument = 4,
    /// `ncclInvalidUsage`.
    Usage = 5,
    /// `ncclRemoteError`.
    Remote = 6,
    /// `ncclInProgress`.
    InProgress = 7,
    /// `ncclTimeout`.
    Timeout = 8,
}

impl Status {
    /// The result of a code; an internal error if the code is unknown.
    pub(crate) fn from_code(code: c_int) -> Self {
        match code {
            0 => Self::Success,
            1 => Self::Cuda,
            2 => Self::System,
            4 => Self::Argument,
            5 => Self::Usage,
            6 => Self::Remote,
            7 => Self::InProgress,
            8 => Self::Timeout,
            _ => Self::Internal,
        }
    }

    /// The kind of failure that this result stands for.
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::Cuda => Kind::Device,
            Self::System => Kind::System,
            Self::Argument => Kind::Argument,
            Self::Usage => Kind::Usage,
            Self::Remote => Kind::Remote,
            Self::Timeout => Kind::Timeout,
            Self::Success | Self::Internal | Self::InProgress => Kind::Internal,
        }
    }
}

impl Code for Status {
    const SUCCESS: Self = Self::Success;

    fn of(kind: Kind) -> Self {
        match kind {
            Kind::Argument => Self::Argument,
            Kind::Usage => Self::Usage,
            Kind::Timeout => Self::Timeout,
            Kind::Remote => Self::Remote,
            Kind::Device => Self::Cuda,
            Kind::System => Self::System,
            Kind::Internal => Self::Internal,
        }
    }
}

/// Runs the body of a function that may return before its work is done; no panic passes.
pub(crate) fn progressing(body: impl FnOnce() -> Result<Progress, Failure>) -> Status {
    let mut progress = Progress::Done;
    let outcome = guarded(|| {
        progress = body()?;
        Ok(())
    });
    match (outcome, progress) {
        (Status::Success, Progress::Background) => Status::InProgress,
        (outcome, _) => outcome,
    }
}

/// NCCL's words for a code, byte for byte: users compare them.
pub(crate) fn words(result: c_int) -> &'static CStr {
    match result {
        0 => c"no error",
        1 => c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        2 => c"unhandled system error (run with NCCL_DEBUG=INFO for details)",
        3 => c"internal error - please report this issue to the NCCL developers",
        4 => c"invalid argument (run with NCCL_DEBUG=WARN for details)",
        5 => c"invalid usage (run with NCCL_DEBUG=WARN for details)",
        6 => c"remote process exited or there was a network error",
        7 => c"NCCL operation in progress",
        8 => c"timeout",
        _ => c"unknown result code",
    }
}
