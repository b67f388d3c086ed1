//! The shadow of one of our communicators: a communicator of the fallback with the same ranks, for
//! functions that only the fallback has. The first collective one of these makes it.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use spark_ccl::{Communicator, Error, Fault};
use spark_ccl_abi::failure::{Failure, Kind};
use spark_ccl_cuda::{current_device, keep_context};
use spark_ccl_log::Mutex;

use crate::connection::{Connection, Fresh};
use crate::ending::{Ending, await_at_exit};
use crate::fallback::{Real, opened};
use crate::types::{ncclComm_t, ncclUniqueId};

/// How long an abort leaves calls within the fallback alone. A call that is about to begin there
/// has begun by then, and one that waits for nothing has ended.
const GRACE: Duration = Duration::from_millis(200);
/// How often an abort looks whether calls have ended.
const LOOK_EVERY: Duration = Duration::from_millis(5);

#[derive(Debug, Default)]
pub(crate) struct Shadow {
    /// The handle's address, once it was made.
    handle: OnceLock<usize>,
    /// Held while it is made.
    making: Mutex<()>,
    usage: Mutex<Usage>,
}

#[derive(Debug, Default)]
struct Usage {
    /// How many calls are within the fallback.
    calls: usize,
    /// Whether it is to end without the other ranks.
    is_aborted: bool,
    /// Whether it has ended, or a thread ends it.
    has_ended: bool,
}

/// The use of a shadow by a call within the fallback.
pub(crate) struct InUse(Arc<Shadow>);

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.usage.lock().calls -= 1;
    }
}

impl Shadow {
    /// The handle, if it was made.
    pub(crate) fn get(&self) -> Option<ncclComm_t> {
        let handle = self.handle.get().copied();
        handle.map(std::ptr::with_exposed_provenance_mut)
    }

    /// Notes that a call uses the shadow until the returned value is dropped.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<InUse, Failure> {
        let mut usage = self.usage.lock();
        if usage.is_aborted {
            return Err(aborted());
        }
        usage.calls += 1;
        Ok(InUse(Arc::clone(self)))
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
        if self.usage.lock().is_aborted {
            return Err(aborted());
        }
        let handle = fresh.take();
        // Nobody else sets it: the lock is held.
        let _ = self.handle.set(handle.expose_provenance());
        // What the fallback has set up for it, perhaps the driver, too, is taken down after that.
        await_at_exit();
        Ok(handle)
    }

    /// Has it end without the other ranks. (Its orderly end waits for them.) If calls are within
    /// the fallback, a thread soon ends it there, which ends their waits.
    pub(crate) fn abort(self: &Arc<Self>) {
        let is_used = {
            let mut usage = self.usage.lock();
            usage.is_aborted = true;
            usage.calls > 0
        };
        if !is_used {
            return;
        }
        let (own, ending) = (Arc::clone(self), Ending::begin());
        let end = move || {
            own.end_calls();
            drop((own, ending));
        };
        if let Err(error) = spark_ccl_log::spawn("spark-nccl-abort", end) {
            spark_ccl_log::warn!("calls within NCCL are not ended by an abort: {error}");
        }
    }

    /// Ends it, unless the calls within the fallback end before.
    fn end_calls(&self) {
        let start = Instant::now();
        loop {
            let mut usage = self.usage.lock();
            if usage.calls == 0 {
                return;
            }
            if start.elapsed() >= GRACE {
                usage.has_ended = true;
                break;
            }
            drop(usage);
            std::thread::sleep(LOOK_EVERY);
        }
        self.end("ncclCommAbort");
    }

    /// Decides how it ends, for a communicator that ends, too: in order, unless that has failed.
    pub(crate) fn decide(&self, comm: &Communicator) {
        if self.handle.get().is_some() && has_failed(comm) {
            self.usage.lock().is_aborted = true;
        }
    }

    fn end(&self, name: &str) {
        let (Some(handle), Some(real)) = (self.get(), opened()) else {
            return;
        };
        let _context = keep_context();
        // SAFETY: the fallback has made the handle, and this is called once: when this value is
        // dropped, or before, with `has_ended` set. No call begins to use the handle any more:
        // each is counted from before that to its end, and refused once `is_aborted` is set. At
        // the drop there are none; before, all are within the fallback, for which an abort is what
        // ends them. The name is one of the two that `end` takes.
        if let Err(failure) = unsafe { real.end(name, handle) } {
            spark_ccl_log::warn!("{}", failure.message());
        }
    }
}

impl Drop for Shadow {
    fn drop(&mut self) {
        let usage = self.usage.get_mut();
        let name = match (usage.has_ended, usage.is_aborted) {
            (true, _) => return,
            (false, true) => "ncclCommAbort",
            (false, false) => "ncclCommDestroy",
        };
        self.end(name);
    }
}

fn aborted() -> Failure {
    Failure::new(
        Kind::Usage,
        "the communicator was aborted, and NCCL's beside it with it",
    )
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
