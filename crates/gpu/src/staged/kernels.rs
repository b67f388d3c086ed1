//! The kernels that pass pieces to the host and back, loaded on a GPU.

use std::sync::Arc;

use spark_ccl_cuda::cudarc::driver::CudaContext;
use spark_ccl_cuda::{Function, Images};

use crate::Error;

static IMAGES: Images = Images::new("staged.cu", include_bytes!("../../kernels/staged.images"));

#[derive(Debug)]
pub(crate) struct Kernels {
    pub(super) operations: Function,
    pub(super) messages: Function,
}

impl Kernels {
    pub(crate) fn load(context: &Arc<CudaContext>) -> Result<Self, Error> {
        let images = IMAGES.load(context)?;
        Ok(Self {
            operations: images.function("staged")?,
            messages: images.function("staged_messages")?,
        })
    }
}
