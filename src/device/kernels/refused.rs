//! Errors of kernels that lack something, as the library's errors.

use spark_ccl_gpu as gpu;

use crate::error::Error;

/// An error for something that is not there; the communicator is fine.
pub(super) fn refused(error: gpu::Error, rank: usize) -> Error {
    match error {
        gpu::Error::Cuda(error) => error.of_rank(rank).into(),
        missing => Error::Unsupported {
            what: "SPARK_CCL_BACKEND=engine".to_owned(),
            reason: missing.to_string(),
        },
    }
}
