//! Errors of CUDA as the library's: what failed, on which GPU, and what to do.

use std::sync::Arc;

use crate::error::Error;

impl From<spark_ccl_cuda::Error> for Error {
    fn from(error: spark_ccl_cuda::Error) -> Self {
        match error {
            spark_ccl_cuda::Error::Call { .. } => Self::Cuda(Arc::new(error)),
            spark_ccl_cuda::Error::Context { .. } => Self::Invalid {
                operation: "adopt_context",
                problem: error.to_string(),
            },
            spark_ccl_cuda::Error::Stream { .. } => Self::Invalid {
                operation: "borrow_stream",
                problem: error.to_string(),
            },
            missing => Self::Unsupported {
                what: "device memory".to_owned(),
                reason: missing.to_string(),
            },
        }
    }
}
