//! Errors of NCCL as the library's: the failed call, the reason, and the remedy.

use std::sync::Arc;

use spark_ccl_nccl as nccl;

use crate::error::Error;

/// An error for a call that NCCL refused or lacks; the communicator is fine.
pub(super) fn refused(operation: &'static str, error: impl Into<Arc<nccl::Error>>) -> Error {
    let error = error.into();
    match &*error {
        nccl::Error::Library { .. }
        | nccl::Error::Symbol { .. }
        | nccl::Error::TooOld { .. }
        | nccl::Error::Unsupported { .. } => Error::Unsupported {
            what: operation.to_owned(),
            reason: error.to_string(),
        },
        nccl::Error::Argument { error, .. } => Error::Invalid {
            operation,
            problem: error.to_string(),
        },
        nccl::Error::Grouped { .. } => Error::Invalid {
            operation,
            problem: error.to_string(),
        },
        _ => Error::Nccl(error),
    }
}

/// Whether the communicator works on after an error.
pub(super) fn is_harmless(error: &nccl::Error) -> bool {
    match error {
        nccl::Error::Call(call) => call.code == nccl::Code::INVALID_ARGUMENT,
        nccl::Error::Timeout { .. } | nccl::Error::Unusable { .. } => false,
        _ => true,
    }
}

/// Whether an error may be what another rank's end looks like from here.
pub(super) fn may_be_remote(error: &nccl::Error) -> bool {
    let of_peers = [
        nccl::Code::REMOTE,
        nccl::Code::SYSTEM,
        nccl::Code::INTERNAL,
        nccl::Code::CUDA,
    ];
    error.code().is_none_or(|code| of_peers.contains(&code))
}
