//! Makes the engine of the backend that is asked for. For `SPARK_CCL_BACKEND=auto` it chooses one,
//! the same on all ranks, by the descriptions of all GPUs.

use std::sync::Arc;
use std::time::Instant;

use spark_ccl_config::Backend;
use spark_ccl_fork::Owned;

use super::agreement::{all_have, find_gpu, need_gpu, no_other_has, tell_gpu};
use super::{kernels, nccl};
use crate::api::communicator::Communicator;
use crate::engine::Engine;
use crate::error::Error;

/// The engine of the communicator's backend, which is one for devices. Collective.
pub(crate) fn attach(
    comm: &Communicator,
    deadline: Instant,
) -> Result<Owned<Arc<dyn Engine>>, Error> {
    match comm.backend() {
        Backend::Nccl => nccl::attach(comm, deadline),
        Backend::Engine => kernels::attach(comm, deadline),
        Backend::Auto => attach_any(comm, deadline),
        backend => Err(Error::Unsupported {
            what: format!("the backend {backend}"),
            reason: "no engine of this library is made for it".to_owned(),
        }),
    }
}

/// NCCL where all ranks have it, and each a GPU of its own; otherwise this library's own kernels.
/// Collective.
fn attach_any(comm: &Communicator, deadline: Instant) -> Result<Owned<Arc<dyn Engine>>, Error> {
    let settings = &comm.inner.world.settings;
    let found = need_gpu(comm).and_then(|()| {
        nccl::library(settings)?;
        find_gpu(comm)
    });
    let told = tell_gpu(comm, found.as_ref().ok())?;
    let agreed = all_have(comm, "NCCL", told).and_then(|all| no_other_has(comm, &all, ""));
    // This rank's own reason is more precise.
    match found.and(agreed) {
        Ok(()) => nccl::attach(comm, deadline),
        Err(reason) => {
            spark_ccl_log::info!("rank {}: own kernels, without NCCL: {reason}", comm.rank());
            let attached = kernels::attach(comm, deadline);
            if attached.is_err() {
                // The error of the kernels would only mention the second choice.
                spark_ccl_log::warn!("rank {}: NCCL was the first choice: {reason}", comm.rank());
            }
            attached
        }
    }
}
