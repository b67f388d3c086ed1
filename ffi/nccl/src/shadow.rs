//! The communicator of NVIDIA's library that stands behind one of ours, for functions that only
//! that library has. Made by the first collective of these.

use spark_ccl::Communicator;
use spark_ccl_abi::failure::{Failure, Kind};
use spark_ccl_cuda::{context, keep_context, make_current};
use spark_ccl_log::Mutex;

use crate::fallback::{Real, opened};
use crate::types::{ncclComm_t, ncclUniqueId};

/// None until it was made; then the handle's address.
#[derive(Debug, Default)]
pub(crate) struct Shadow(Mutex<Option<usize>>);

impl Shadow {
    /// The handle, if it was made.
    pub(crate) fn get(&self) -> Option<ncclComm_t> {
        let handle = *self.0.lock();
        handle.map(std::ptr::with_exposed_provenance_mut)
    }

    /// The handle; with all ranks of the communicator, makes it first. Waits for them.
    pub(crate) fn made(&self, comm: &Communicator, real: &Real) -> Result<ncclComm_t, Failure> {
        let mut own = self.0.lock();
        if let Some(handle) = *own {
            return Ok(std::ptr::with_exposed_provenance_mut(handle));
        }
        let _context = keep_context();
        if let Some(device) = comm.device() {
            let entered = context(device).and_then(|context| make_current(&context));
            entered.map_err(|error| Failure::new(Kind::Device, error.to_string()))?;
        }
        let id = shared_id(comm, real)?;
        let handle = real.connect(&id, comm.rank(), comm.size())?;
        *own = Some(handle.expose_provenance());
        Ok(handle)
    }
}

/// A unique id of the other library, which the first rank makes for all. Where it makes none, all
/// learn that.
fn shared_id(comm: &Communicator, real: &Real) -> Result<ncclUniqueId, Failure> {
    let own = match comm.rank() {
        0 => real.unique_id().map(Some),
        _ => Ok(None),
    };
    let mut sent = [0; 1 + size_of::<ncclUniqueId>()];
    if let Ok(Some(id)) = &own {
        sent[0] = 1;
        sent[1..].copy_from_slice(&id.internal);
    }
    comm.broadcast_in_place(&mut sent[..], 0).run()?;
    own?;
    let [1, internal @ ..] = sent else {
        return Err(Failure::new(
            Kind::Remote,
            "rank 0 has no unique id of NCCL's: its own error says why",
        ));
    };
    Ok(ncclUniqueId { internal })
}

impl Drop for Shadow {
    fn drop(&mut self) {
        if let (Some(handle), Some(real)) = (self.get(), opened()) {
            let _context = keep_context();
            // SAFETY: the handle is one that this library has made, and only this has it, which is
            // being dropped.
            if let Err(failure) = unsafe { real.destroy(handle) } {
                spark_ccl_log::warn!("{}", failure.message());
            }
        }
    }
}
