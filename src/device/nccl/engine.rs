//! An NCCL communicator, and the errors that NCCL reports of it.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use spark_ccl_control::DevicePart;
use spark_ccl_cuda::cudarc::driver::CudaStream;
use spark_ccl_cuda::cudarc::driver::sys::CUresult;
use spark_ccl_log::Mutex;
use spark_ccl_nccl::{self as nccl, DeviceSlice, Library};
use spark_ccl_types::{DType, Operation, ReduceOp};

use super::connection_key::ConnectionKey;
use super::error::{is_harmless, may_be_remote, refused};
use super::inside::Inside;
use super::registration_table::RegistrationTable;
use crate::device::calls::Calls;
use crate::device::order;
use crate::device::parts::parts_of;
use crate::device::rank::{DeviceRank, DeviceState, no_end};
use crate::device::watched_engine::WatchedEngine;
use crate::error::Error;
use crate::members::membership::Membership;
use crate::memory::buffer::Region;
use crate::memory::device::block;
use crate::task::Task;

/// The generation of GPUs (Hopper) from which on NCCL reduces 8-bit floats.
const FLOAT8_SINCE: u8 = 9;
/// How long the control plane may take to name the rank whose death NCCL has noticed.
const WORD_OF_A_DEATH: Duration = Duration::from_millis(500);

/// One rank's collectives of device memory.
pub(crate) struct NcclEngine {
    pub(super) base: DeviceRank<nccl::Communicator>,
    pub(super) library: Library,
    /// The membership, over whose host engine the ranks meet. The communicator owns it.
    pub(super) membership: Weak<Membership>,
    /// The oldest of the ranks' GPUs: its generation, and its rank.
    pub(super) oldest: (u8, u32),
    /// The kinds of calls for which the ranks have met.
    pub(super) checked: Mutex<HashSet<ConnectionKey>>,
    /// The memory that ranks of this process have registered with this NCCL id.
    pub(super) kept: Arc<RegistrationTable>,
    /// The NCCL calls under way: the guard checks whether one does not come back.
    pub(super) inside: Inside,
    /// Whether an NCCL call has held up an abort for too long. Only a hint: it orders no other
    /// memory, so all accesses are relaxed.
    pub(super) stuck: AtomicBool,
    /// The kind of the last call, for which the ranks have met. Relaxed: only a hint.
    pub(super) last_key: AtomicU64,
}

/// The error that NCCL has noticed. While a group of another thread has the communicator, none:
/// that group's end returns the error.
pub(super) fn noticed(state: &DeviceState<nccl::Communicator>) -> Option<nccl::Error> {
    match state.backend.as_ref()?.async_error() {
        Ok(_) | Err(nccl::Error::Grouped { .. }) => None,
        Err(error) => Some(error),
    }
}

impl WatchedEngine for NcclEngine {
    type Backend = nccl::Communicator;

    fn base(&self) -> &DeviceRank<nccl::Communicator> {
        &self.base
    }

    fn check(&self) -> Result<(), Error> {
        if self.base.watch.failed() {
            self.abort();
            return Err(self.base.gone());
        }
        // The thread that holds the lock gets NCCL's error itself.
        let Some(state) = self.base.state.try_lock() else {
            return Ok(());
        };
        let (is_gone, noticed) = (state.backend.is_none(), noticed(&state));
        drop(state);
        match noticed {
            Some(error) => Err(self.failed("ncclCommGetAsyncError", error)),
            None if is_gone => Err(self.base.gone()),
            None => Ok(()),
        }
    }

    fn calls_to_compare(&self) -> u64 {
        self.base.watch.calls_made()
    }

    fn ask_of_calls(&self, made: u64) {
        self.ask_about(made);
    }

    fn compare_calls(&self, made: u64) -> Result<(), Error> {
        self.compare_up_to(made)
    }

    fn abort(&self) {
        self.end_nccl(false);
    }

    fn has_leftovers(&self) -> bool {
        self.kept.any(|entry| entry.is_unused(self.base.rank))
    }

    fn will_free(&self) -> bool {
        block::any() || self.kept.any(|entry| entry.will_be_unused(self.base.rank))
    }

    fn tidy(&self) {
        // Taken while NCCL's communicator is at hand: its end deregisters what is still there.
        self.deregister(|| self.kept.take_unused(self.base.rank));
    }
}

impl NcclEngine {
    /// Checks a task and a stream before anything is enqueued, and makes the device current, since
    /// NCCL restores the one that was current before.
    pub(super) fn admit(&self, task: &Task, stream: &CudaStream) -> Result<(), Error> {
        if task.in_place && task.operation() == Operation::AllToAll {
            return Err(Error::Invalid {
                operation: task.operation().name(),
                problem: "NCCL does not exchange memory in place: take two buffers, or \
                          SPARK_CCL_BACKEND=engine"
                    .to_owned(),
            });
        }
        if task.factor_at.is_some() {
            return Err(Error::Unsupported {
                what: "a factor in memory of a device".to_owned(),
                reason: "with NCCL it is not implemented: pass its bytes, or take \
                         SPARK_CCL_BACKEND=engine"
                    .to_owned(),
            });
        }
        self.admit_type(task)?;
        self.base.admit(task, stream)
    }

    /// Refuses reductions that NCCL would refuse, alike on all ranks, so that none waits for the
    /// others.
    fn admit_type(&self, task: &Task) -> Result<(), Error> {
        let (operation, dtype) = (task.operation(), task.signature.dtype);
        if !operation.reduces() {
            return Ok(());
        }
        let known = self.library.reduces(dtype);
        known.map_err(|error| refused(operation.name(), error))?;
        let is_float8 = matches!(dtype, DType::F8E4M3 | DType::F8E5M2);
        let (generation, rank) = self.oldest;
        let reason = if !is_float8 {
            return Ok(());
        } else if generation < FLOAT8_SINCE {
            format!(
                "NCCL reduces it on GPUs of compute capability {FLOAT8_SINCE}.0 (Hopper) or later, \
                 and that of {} is of {generation}.x; reduce another type, or gather these",
                self.base.watch.member(rank)
            )
        } else if self.base.size == 1 && task.reduction.op == Some(ReduceOp::PreMulSum) {
            "NCCL multiplies none of it in a communicator of one rank; scale another type"
                .to_owned()
        } else {
            return Ok(());
        };
        Err(Error::Unsupported {
            what: format!("{operation} of {dtype} on devices"),
            reason,
        })
    }

    /// Keeps the memory of a call that NCCL goes on with, and may still enqueue: nobody knows how
    /// long the memory is used. NCCL is aborted, so that the user may then free memory that this
    /// library cannot keep.
    pub(super) fn outlive(&self, regions: [&Region; 2]) {
        order::were_lost(
            regions,
            &no_end(self.base.device(), CUresult::CUDA_ERROR_NOT_READY),
        );
        self.abort();
    }

    /// Notes a call of a group that has ended, and whether it was enqueued as a whole.
    pub(super) fn note(
        &self,
        task: &Task,
        stream: &Arc<CudaStream>,
        is_whole: bool,
    ) -> Result<(), Error> {
        let end = match self.base.lock() {
            Ok(mut state) => self
                .base
                .record(&mut state.calls, stream, parts_of(task), task.limit),
            // Even then, the memory must stay until the call has run.
            Err(_) => self.base.end(stream),
        };
        if is_whole {
            self.observe(task, &end);
        }
        self.base.used(task.regions(), stream, end)
    }

    /// Does something with the NCCL communicator, and checks whether it has failed. `limit` is the
    /// work's own time limit, if it has one.
    pub(super) fn with<R>(
        &self,
        operation: &'static str,
        limit: Option<Duration>,
        work: impl FnOnce(&mut Calls, &nccl::Communicator) -> Result<R, nccl::Error>,
    ) -> Result<R, Error> {
        self.base.check_members([DevicePart::Collective])?;
        let done = {
            let DeviceState { backend, calls, .. } = &mut *self.base.lock()?;
            backend
                .as_ref()
                .map(|nccl| self.counted(limit, || work(calls, nccl)))
        };
        match done {
            Some(done) => done.map_err(|error| self.failed(operation, error)),
            None => Err(self.base.gone()),
        }
    }

    /// Makes an NCCL call that may not return.
    fn counted<R>(&self, limit: Option<Duration>, work: impl FnOnce() -> R) -> R {
        self.inside.enter(limit);
        let result = work();
        self.inside.leave();
        result
    }

    /// NCCL's error as the library's. If the NCCL communicator does not work after it, the
    /// communicator fails on all ranks.
    pub(super) fn failed(
        &self,
        operation: &'static str,
        error: impl Into<Arc<nccl::Error>>,
    ) -> Error {
        let error = error.into();
        if is_harmless(&error) && self.works_on(&error) {
            return refused(operation, error);
        }
        if may_be_remote(&error) {
            self.listen();
        }
        self.base.give_up(error.to_string());
        self.base.gone()
    }

    /// Whether the NCCL communicator still works after an error. A non-blocking one reports even
    /// refused arguments as its own error.
    fn works_on(&self, error: &nccl::Error) -> bool {
        let state = || self.base.state.try_lock();
        error.code().is_none() || state().and_then(|state| noticed(&state)).is_none()
    }

    /// Waits a little for news of a rank that has died: NCCL only says that something is broken.
    fn listen(&self) {
        let start = Instant::now();
        while !self.base.watch.failed() && start.elapsed() < WORD_OF_A_DEATH {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(super) fn slice(&self, region: &Region, dtype: DType) -> DeviceSlice {
        let device = self.base.device() as i32;
        // SAFETY: `admit` has checked that the region is empty, or memory of this device. Its
        // `SendBuf` or `RecvBuf` promises `len` elements. Its `Order` promises that they stay, and
        // that nobody else uses them in a conflicting way, until the call has run.
        unsafe { DeviceSlice::from_raw(region.ptr.cast(), region.len, dtype, device) }
    }
}

impl std::fmt::Debug for NcclEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NcclEngine")
            .field("base", &self.base)
            .finish_non_exhaustive()
    }
}
