//! The kernels that fill and read slots, loaded on a GPU.

use std::sync::Arc;

use spark_ccl_cuda::cudarc::driver::CudaContext;
use spark_ccl_cuda::{Function, Images};
use spark_ccl_slots::{Form, Kernel, Plan};

use crate::Error;

static IMAGES: Images = Images::new("slots.cu", spark_ccl_slots::IMAGES);

/// The kernels, loaded on a GPU.
#[derive(Debug)]
pub(crate) struct Kernels {
    direct_small: Function,
    direct_large: Function,
    shared_large: Function,
    packets: Function,
    pub(crate) messages: Function,
}

impl Kernels {
    pub(crate) fn load(context: &Arc<CudaContext>) -> Result<Self, Error> {
        let kernels = IMAGES.load(context)?;
        Ok(Self {
            direct_small: kernels.function("slots_direct_small")?,
            direct_large: kernels.function("slots_direct_large")?,
            shared_large: kernels.function("slots_shared_large")?,
            packets: kernels.function("slots_packets")?,
            messages: kernels.function("slots_messages")?,
        })
    }

    /// The kernel of a plan.
    pub(crate) fn of(&self, plan: &Plan) -> &Function {
        match (plan.kernel, plan.form) {
            (Kernel::Packets, _) => &self.packets,
            (_, Form::Shared) => &self.shared_large,
            (Kernel::Small, Form::Direct) => &self.direct_small,
            (Kernel::Large, Form::Direct) => &self.direct_large,
        }
    }

    /// The kernels of calls.
    pub(crate) fn of_calls(&self) -> [&Function; 4] {
        [
            &self.direct_small,
            &self.direct_large,
            &self.shared_large,
            &self.packets,
        ]
    }
}
