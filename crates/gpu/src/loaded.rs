//! Loads the kernels of all transports at once, whichever transport comes first.
//!
//! The driver loads a kernel only when all running kernels of the GPU have ended (measured on an
//! H200, driver 580). A running kernel may wait for a rank whose thread loads the kernels of
//! another transport, for its next communicator.

use std::sync::Arc;

use spark_ccl_cuda::cudarc::driver::CudaContext;

use crate::Error;
use crate::kernels::Kernels;
use crate::{slot_kernels, staged};

/// The kernels between the GPUs of a host.
pub(crate) fn between(context: &Arc<CudaContext>) -> Result<Kernels, Error> {
    slot_kernels::Kernels::load(context)?;
    staged::Kernels::load(context)?;
    Kernels::load(context)
}

/// The kernels by way of the host.
pub(crate) fn by_host(context: &Arc<CudaContext>) -> Result<staged::Kernels, Error> {
    slot_kernels::Kernels::load(context)?;
    Kernels::load(context)?;
    staged::Kernels::load(context)
}

/// The kernels of slots.
pub(crate) fn of_slots(context: &Arc<CudaContext>) -> Result<slot_kernels::Kernels, Error> {
    by_host(context)?;
    slot_kernels::Kernels::load(context)
}
