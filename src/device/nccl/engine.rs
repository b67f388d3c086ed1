//! A communicator of NCCL's, and what is known of the calls that were enqueued with it.

use super::connection_key::ConnectionKey;
use super::error::{is_harmless, may_be_remote, refused};
use super::mark::Mark;
use super::registration_table::RegistrationTable;
use crate::buffer::Region;
use crate::device::gpu::Gpu;
use crate::device::order::{self, hold_back, were_lost, were_used};
use crate::error::Error;
use crate::membership::Membership;
use crate::task::Task;
use parking_lot::{Mutex, MutexGuard};
use spark_ccl_control::{DEVICE_MARK, Fault, Member, Watch};
use spark_ccl_cuda::cudarc::driver::sys::CUresult;
use spark_ccl_cuda::cudarc::driver::{CudaContext, CudaStream, DriverError};
use spark_ccl_cuda::{RecordedEvent, is_capturing, is_of_the_thread, make_current};
use spark_ccl_nccl::{self as nccl, CallTimeout, DeviceSlice, Library};
use spark_ccl_types::{DType, Operation, ReduceOp};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How often a thread that waits for the state checks whether the communicator has failed.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The generation of GPUs (Hopper) from which on NCCL reduces 8-bit floats.
const FLOAT8_SINCE: u8 = 9;
/// How long the control plane may take to name the rank whose death NCCL has noticed.
const WORD_OF_A_DEATH: Duration = Duration::from_millis(500);

/// One rank's collectives of device memory.
pub(crate) struct NcclEngine {
    pub(super) library: Library,
    pub(super) context: Arc<CudaContext>,
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) watch: Arc<Watch>,
    /// Over which the ranks meet. It is the communicator's, and gone when that is.
    pub(super) host: Weak<Membership>,
    pub(super) gpu: Arc<Gpu>,
    /// The oldest of the ranks' GPUs: its generation, and its rank.
    pub(super) oldest: (u8, u32),
    pub(super) state: Mutex<State>,
    /// What is registered with it, and with others of this process.
    pub(super) kept: Arc<RegistrationTable>,
    /// Whether a thread gives memory back.
    pub(super) tidies: AtomicBool,
    /// How many calls of NCCL's were begun, and how many have returned: the guard checks whether one does not. They
    /// publish nothing.
    pub(super) begun: AtomicU64,
    pub(super) ended: AtomicU64,
    /// That of calls which do not block.
    pub(super) call_timeout: CallTimeout,
    /// Whether a call of NCCL's has held up an abort for too long. A hint as well.
    pub(super) stuck: AtomicBool,
    /// The kind of the last call, for which the ranks have met. It publishes nothing either.
    pub(super) last_key: AtomicU64,
}

pub(super) struct State {
    /// `None` once it was aborted, or finalized.
    pub(super) nccl: Option<nccl::Communicator>,
    pub(super) timeout: Duration,
    pub(super) calls: Calls,
}

/// What was enqueued.
#[derive(Default)]
pub(super) struct Calls {
    /// How much.
    pub(super) count: u64,
    /// The end of the last one, until it is known to have run. NCCL runs the calls of a communicator one after the
    /// other, even if they are in different streams.
    pub(super) last: Option<Arc<RecordedEvent>>,
    /// The one that is watched, until it has run.
    pub(super) mark: Option<Mark>,
    /// The kinds for which the ranks have met.
    pub(super) met: HashSet<ConnectionKey>,
}

impl State {
    /// What NCCL has noticed. While the communicator is another thread's group's, that group says.
    pub(super) fn noticed(&self) -> Option<nccl::Error> {
        match self.nccl.as_ref()?.async_error() {
            Ok(_) | Err(nccl::Error::Grouped { .. }) => None,
            Err(error) => Some(error),
        }
    }
}

impl NcclEngine {
    pub(super) fn device(&self) -> usize {
        self.context.ordinal()
    }

    /// This rank, as errors name it.
    pub(super) fn member(&self) -> Member {
        self.watch.member(self.rank as u32)
    }

    /// Names this rank in an error of CUDA's.
    pub(super) fn own<T>(
        &self,
        result: Result<T, spark_ccl_cuda::Error>,
    ) -> Result<T, spark_ccl_cuda::Error> {
        result.map_err(|error| error.of_rank(self.rank))
    }

    /// Checks a stream and where buffers are, before anything is done in it, and makes the device current: NCCL
    /// goes back to the one that was.
    pub(super) fn admit(&self, task: &Task, stream: &CudaStream) -> Result<(), Error> {
        let (operation, places) = (task.operation().name(), task.regions());
        if task.in_place && task.operation() == Operation::AllToAll {
            return Err(Error::Invalid {
                operation,
                problem: "device memory is not exchanged in place".to_owned(),
            });
        }
        if !Arc::ptr_eq(stream.context(), &self.context) {
            return Err(self.other(operation, "stream", stream.context().ordinal()));
        }
        if is_of_the_thread(stream) {
            return Err(Error::Invalid {
                operation,
                problem: "the per-thread stream is another one in each thread; take a new stream"
                    .to_owned(),
            });
        }
        self.admit_type(task)?;
        self.own(make_current(&self.context))?;
        self.admit_capture(operation, places, stream)?;
        for region in places.into_iter().filter(|region| region.len > 0) {
            let Some(site) = &region.site else {
                return Err(Error::Invalid {
                    operation,
                    problem: "one buffer is host memory, the other device memory".to_owned(),
                });
            };
            let own = site.stream.as_ref();
            let elsewhere = own.is_some_and(|own| !Arc::ptr_eq(own.context(), &self.context));
            if site.device != self.device() || elsewhere {
                return Err(self.other(operation, "memory", site.device));
            }
        }
        Ok(())
    }

    /// Refuses reductions that NCCL would refuse, alike on all ranks, so that none waits for the others.
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
                "NCCL reduces it on GPUs of compute capability {FLOAT8_SINCE}.0 (Hopper) or later, and that of {} is \
                 of {generation}.x; reduce another type, or gather these",
                self.watch.member(rank)
            )
        } else if self.size == 1 && task.reduction.op == Some(ReduceOp::PreMulSum) {
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

    /// Checks that no graph captures memory that may be gone when it runs.
    fn admit_capture(
        &self,
        operation: &'static str,
        regions: [&Region; 2],
        stream: &CudaStream,
    ) -> Result<(), Error> {
        if !self.own(is_capturing(stream))? || order::is_the_programs(regions) {
            return Ok(());
        }
        Err(Error::Invalid {
            operation,
            problem: "a graph may run when this memory is gone; capture calls of `DeviceSlice`"
                .to_owned(),
        })
    }

    /// Makes a stream wait until a call's memory may be used there. Checks for a capture again, which may have begun
    /// while the ranks met for the call. If CUDA fails, the communicator fails on all ranks, unless the error is one of
    /// a capture.
    pub(super) fn hold_back(
        &self,
        operation: &'static str,
        regions: [&Region; 2],
        stream: &Arc<CudaStream>,
    ) -> Result<(), Error> {
        self.admit_capture(operation, regions, stream)?;
        hold_back(regions, stream).map_err(|error| self.lost(error))
    }

    /// Keeps the memory of a call that NCCL continues, and may still enqueue: it is not known until when the memory is
    /// used. NCCL is aborted, so that the program may then free memory that this library cannot keep.
    pub(super) fn outlive(&self, regions: [&Region; 2]) {
        were_lost(
            regions,
            &no_end(self.device(), CUresult::CUDA_ERROR_NOT_READY),
        );
        self.abort();
    }

    /// Notes a call of a group that has ended.
    pub(super) fn note(
        &self,
        regions: [&Region; 2],
        stream: &Arc<CudaStream>,
    ) -> Result<(), Error> {
        let end = match self.lock() {
            Ok(mut state) => self.record(&mut state.calls, stream),
            // The memory must be kept even so.
            Err(_) => self.end(stream),
        };
        self.used(regions, stream, end)
    }

    /// Records the end of a call that is the last one now.
    pub(super) fn record(
        &self,
        calls: &mut Calls,
        stream: &Arc<CudaStream>,
    ) -> Result<Option<Arc<RecordedEvent>>, spark_ccl_cuda::Error> {
        calls.count += 1;
        let end = self.end(stream)?;
        if let Some(end) = &end {
            calls.last = Some(Arc::clone(end));
        }
        Ok(end)
    }

    /// An event at the end of a stream. `None` while the stream captures a graph, where the event would never occur.
    pub(super) fn end(
        &self,
        stream: &Arc<CudaStream>,
    ) -> Result<Option<Arc<RecordedEvent>>, spark_ccl_cuda::Error> {
        if is_capturing(stream)? {
            return Ok(None);
        }
        self.gpu.events.record(stream).map(Arc::new).map(Some)
    }

    /// Notes for a call's memory up to which event of a stream it is used.
    pub(super) fn used(
        &self,
        regions: [&Region; 2],
        stream: &CudaStream,
        end: Result<Option<Arc<RecordedEvent>>, spark_ccl_cuda::Error>,
    ) -> Result<(), Error> {
        let told = end.and_then(|end| match end {
            Some(end) => were_used(regions, stream, &end),
            None if order::is_the_programs(regions) => Ok(()),
            None => {
                let captured = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
                Err(no_end(self.device(), captured))
            }
        });
        told.map_err(|error| {
            were_lost(regions, &error);
            // Also if a graph is being captured: what already runs is ended before its memory is freed.
            self.give_up(error.to_string());
            error.of_rank(self.rank).into()
        })
    }

    /// Does something with NCCL's communicator, which then may have failed.
    pub(super) fn with<R>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&mut Calls, &nccl::Communicator) -> Result<R, nccl::Error>,
    ) -> Result<R, Error> {
        if self.watch.failed() {
            return Err(self.gone());
        }
        let done = {
            let State { nccl, calls, .. } = &mut *self.lock()?;
            nccl.as_ref().map(|nccl| self.inside(|| work(calls, nccl)))
        };
        match done {
            Some(done) => done.map_err(|error| self.failed(operation, error)),
            None => Err(self.gone()),
        }
    }

    /// The state; an error where the communicator has failed, and a call of NCCL's that has it does not come back.
    pub(super) fn lock(&self) -> Result<MutexGuard<'_, State>, Error> {
        loop {
            if let Some(state) = self.state.try_lock_for(LOOK_EVERY) {
                return Ok(state);
            }
            if self.watch.failed() {
                return Err(self.gone());
            }
        }
    }

    /// Makes a call of NCCL's that may not return.
    fn inside<R>(&self, work: impl FnOnce() -> R) -> R {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let result = work();
        self.ended.fetch_add(1, Ordering::Relaxed);
        result
    }

    /// What NCCL says as the library's error. One after which the communicator does not work fails it on
    /// all ranks.
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
        self.give_up(error.to_string());
        self.gone()
    }

    /// Whether NCCL's communicator is none the worse for an error: one that does not block keeps what it has refused.
    fn works_on(&self, error: &nccl::Error) -> bool {
        let noticed = || self.state.try_lock().and_then(|state| state.noticed());
        error.code().is_none() || noticed().is_none()
    }

    /// An error of CUDA's. The other ranks wait for this one's part, which does not come.
    pub(super) fn lost(&self, error: spark_ccl_cuda::Error) -> Error {
        let error = error.of_rank(self.rank);
        if !error.is_of_a_capture() {
            self.give_up(error.to_string());
        }
        error.into()
    }

    /// Fails the communicator on all ranks.
    pub(super) fn give_up(&self, reason: String) {
        let by = self.member();
        self.watch.raise(Fault::Aborted { by, reason });
    }

    /// Waits a little for news of a rank that has died: NCCL only says that something is broken.
    fn listen(&self) {
        let start = Instant::now();
        while !self.watch.failed() && start.elapsed() < WORD_OF_A_DEATH {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(super) fn raise_timeout(&self, calls: u64, waited: Duration) {
        self.watch.raise(Fault::TimedOut {
            by: self.member(),
            sequence: DEVICE_MARK | calls,
            words: format!("the last that was enqueued on device {}", self.device()),
            waited,
            late: Vec::new(),
        });
    }

    pub(super) fn gone(&self) -> Error {
        self.watch.fault().map_or_else(
            || Error::Invalid {
                operation: "device memory",
                problem: "the communicator has been finalized".to_owned(),
            },
            Error::Failed,
        )
    }

    pub(super) fn slice(&self, region: &Region, dtype: DType) -> DeviceSlice {
        // SAFETY: `admit` has checked that the region is empty, or memory of this device. Its `SendBuf` or `RecvBuf`
        // promises `len` elements, and its order that they stay, and that nobody else uses them otherwise, until the
        // call has run.
        unsafe { DeviceSlice::from_raw(region.ptr.cast(), region.len, dtype, self.device() as i32) }
    }

    fn other(&self, operation: &'static str, what: &str, device: usize) -> Error {
        Error::Invalid {
            operation,
            problem: format!(
                "the {what} is of device {device}, but the communicator of device {} (or of another \
                 context); take what was made with `Communicator::context`",
                self.device()
            ),
        }
    }
}

/// Why the end of a call is not known.
fn no_end(device: usize, why: CUresult) -> spark_ccl_cuda::Error {
    spark_ccl_cuda::Error::of("cuEventRecord", device, DriverError(why))
}

impl std::fmt::Debug for NcclEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NcclEngine")
            .field("rank", &self.rank)
            .field("device", &self.device())
            .finish_non_exhaustive()
    }
}
