//! The shadow of one of our communicators: a communicator of the fallback with the same ranks, for
//! functions that only the fallback has. The first collective one of these makes it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use spark_ccl::{Communicator, Error, Fault};
use spark_ccl_abi::failure::{Failure, Kind};
use spark_ccl_cuda::{current_device, keep_context};
use spark_ccl_log::Mutex;

use crate::connection::{Connection, Fresh};
use crate::fallback::{Real, opened};
use crate::types::{ncclComm_t, ncclUniqueId};

#[derive(Debug, Default)]
pub(crate) struct Shadow {
    /// The handle's address, once it was made.
    handle: OnceLock<usize>,
    /// Held while it is made.
    making: Mutex<()>,
    /// Whether it is to end without the other ranks. Orders no other memory: relaxed.
    is_aborted: AtomicBool,
}

impl Shadow {
    /// The handle, if it was made.
    pub(crate) fn get(&self) -> Option<ncclComm_t> {
        let handle = self.handle.get().copied();
        handle.map(std::ptr::with_exposed_provenance_mut)
    }

    /// The handle. Makes the shadow first, if there is none, with all ranks of the communicator,
    /// and waits for them. If that fails, the communicator fails on all ranks.
    pub(crate) fn made(
        &self,
        comm: &Communicator,
        real: &'static Real,
    ) -> Result<ncclComm_t, Failure> {
        let _making = self.making.lock();
        if let Some(handle) = self.get() {
            return Ok(handle);
        }
        let fresh = connected(comm, real)?;
        // Until all have made it, a rank that leaves the communicator has no part in it.
        comm.barrier().run()?;
        if self.is_aborted.load(Ordering::Relaxed) {
            return Err(Failure::new(
                Kind::Usage,
                "the communicator was aborted while one of NCCL's was made",
            ));
        }
        let handle = fresh.take();
        // Nobody else sets it: the lock is held.
        let _ = self.handle.set(handle.expose_provenance());
        Ok(handle)
    }

    /// Has it end without the other ranks. (Its orderly end waits for them.)
    pub(crate) fn abort(&self) {
        self.is_aborted.store(true, Ordering::Relaxed);
    }

    /// Decides how it ends, for a communicator that ends, too: in order, unless that has failed.
    pub(crate) fn decide(&mut self, comm: &Communicator) {
        if self.handle.get().is_some() && has_failed(comm) {
            self.abort();
        }
    }
}

impl Drop for Shadow {
    fn drop(&mut self) {
        let (Some(handle), Some(real)) = (self.get(), opened()) else {
            return;
        };
        let _context = keep_context();
        let name = if *self.is_aborted.get_mut() {
            "ncclCommAbort"
        } else {
            "ncclCommDestroy"
        };
        // SAFETY: the fallback has made the handle, and nobody uses it any more: its users keep the
        // communicator that has this value, which is being dropped. The name is one of the two that
        // `end` takes.
        if let Err(failure) = unsafe { real.end(name, handle) } {
            spark_ccl_log::warn!("{}", failure.message());
        }
    }
}

/// Whether other ranks may not end the communicator. Its finalize, and this rank's own leave when
/// its process exits, are no failures.
fn has_failed(comm: &Communicator) -> bool {
    let is_own =
        |fault: &Fault| matches!(fault, Fault::Left { rank, .. } if rank.rank == comm.rank());
    let checked = comm.check_all_ranks();
    let has_fault = matches!(checked, Err(Error::Failed(fault)) if !is_own(&fault));
    has_fault || comm.has_lost_a_process()
}

/// Has the fallback connect the communicator's ranks.
fn connected(comm: &Communicator, real: &'static Real) -> Result<Fresh, Failure> {
    let id = shared_id(comm, real)?;
    let connection = Connection {
        real,
        id,
        rank: comm.rank(),
        size: comm.size(),
        // In a thread of its own, which has no current device.
        device: comm.device().or_else(current_device),
    };
    let deadline = Instant::now() + comm.timeout()?;
    let check = || Ok(comm.check_all_present("connecting for NCCL")?);
    connection.connect(deadline, check).inspect_err(|failure| {
        // Where this rank alone has failed, the others wait in the fallback, and must learn it.
        if comm.check_all_ranks().is_ok() {
            comm.abort(failure.message());
        }
    })
}

/// A unique id of the fallback, which rank 0 makes for all. If rank 0 fails, all learn that.
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
