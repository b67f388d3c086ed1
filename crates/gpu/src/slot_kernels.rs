//! The kernels that fill and read slots, loaded on a GPU.

use std::sync::Arc;

use spark_ccl_cuda::cudarc::driver::CudaContext;
use spark_ccl_cuda::{Function, Images};
use spark_ccl_slots::{Form, Plan};

use crate::Error;

static IMAGES: Images = Images::new("slots.cu", spark_ccl_slots::IMAGES);

/// The kernels, loaded on a GPU.
#[derive(Debug)]
pub(crate) struct Kernels {
    direct_small: Function,
    direct_large: Function,
    shared_large: Function,
}

impl Kernels {
    pub(crate) fn load(context: &Arc<CudaContext>) -> Result<Self, Error> {
        let kernels = IMAGES.load(context)?;
        Ok(Self {
            direct_small: kernels.function("slots_direct_small")?,
            direct_large: kernels.function("slots_direct_large")?,
            shared_large: kernels.function("slots_shared_large")?,
        })
    }

    /// The one of a plan.
    pub(crate) fn of(&self, plan: &Plan) -> &Function {
        match (plan.form, plan.is_small) {
            (Form::Direct, true) => &self.direct_small,
            (Form::Direct, false) => &self.direct_large,
            (Form::Shared, _) => &self.shared_large,
        }
    }

    pub(crate) fn all(&self) -> [&Function; 3] {
        [&self.direct_small, &self.direct_large, &self.shared_large]
    }
}
