//! The part that all engines of device memory share: a rank of a communicator, its GPU, and its
//! state. Knows no backend.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use spark_ccl_control::{DEVICE_MARK, DevicePart, Fault, Late, Member, Watch};
use spark_ccl_cuda::cudarc::driver::sys::CUresult;
use spark_ccl_cuda::cudarc::driver::{CudaContext, CudaStream, DriverError};
use spark_ccl_cuda::{RecordedEvent, capture_of, is_capturing};
use spark_ccl_log::{Mutex, MutexGuard};

use super::calls::Calls;
use super::notes::Notes;
use super::order::{self, were_lost, were_used};
use crate::api::communicator::Communicator;
use crate::error::Error;
use crate::memory::buffer::Region;
use crate::memory::device::gate::{Gate, Passed, gate};
use crate::memory::device::gpu::Gpu;

/// How often a thread that waits for the state, or to launch, checks whether the communicator has
/// failed.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A rank with its GPU, and the backend's communicator.
pub(super) struct DeviceRank<B> {
    pub(super) context: Arc<CudaContext>,
    pub(super) gpu: Arc<Gpu>,
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) watch: Arc<Watch>,
    gate: Arc<Gate>,
    /// How many bytes of dropped memory stay set aside on the GPU.
    pub(super) most_set_aside: usize,
    pub(super) state: Mutex<DeviceState<B>>,
    /// Notes the calls for reports, if anybody wants reports.
    pub(super) notes: Option<Notes>,
    /// Whether a thread frees dropped memory. Orders no other memory: relaxed.
    pub(super) tidies: AtomicBool,
}

pub(super) struct DeviceState<B> {
    /// `None` once the communicator was aborted, or finalized.
    pub(super) backend: Option<B>,
    pub(super) calls: Calls,
}

impl<B> DeviceRank<B> {
    pub(super) fn new(
        comm: &Communicator,
        context: Arc<CudaContext>,
        backend: B,
    ) -> Result<Self, Error> {
        let (rank, inner) = (comm.rank(), &comm.inner);
        let observation = inner.observation.as_ref();
        Ok(Self {
            gpu: Gpu::new(&context, rank)?,
            gate: gate(context.ordinal()),
            most_set_aside: inner.world.settings.gpu.most_set_aside,
            context,
            rank,
            size: comm.size(),
            watch: Arc::clone(&inner.watch),
            state: Mutex::new(DeviceState {
                backend: Some(backend),
                calls: Calls::new(inner.world.settings.operation_timeout),
            }),
            notes: observation.map(|observation| Notes::new(&observation.observed)),
            tidies: AtomicBool::new(false),
        })
    }

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

    /// The state. An error if the communicator has failed, and the thread that holds the state does
    /// not come back from a call of the backend.
    pub(super) fn lock(&self) -> Result<MutexGuard<'_, DeviceState<B>>, Error> {
        loop {
            if let Some(state) = self.state.try_lock_for(LOOK_EVERY) {
                return Ok(state);
            }
            if self.watch.failed() {
                return Err(self.gone());
            }
        }
    }

    /// An error if the communicator has failed. Fails it if a rank has ended that a call of these
    /// parts needs.
    pub(super) fn check_members(
        &self,
        parts: impl IntoIterator<Item = DevicePart>,
    ) -> Result<(), Error> {
        let needed = |part| match part {
            DevicePart::Collective => self.watch.latent().map(|fault| (*fault).clone()),
            DevicePart::SendTo(rank) | DevicePart::ReceiveFrom(rank) => self.watch.latent_of(rank),
        };
        if let Some(fault) = parts.into_iter().find_map(needed) {
            self.watch.raise(fault);
        }
        if self.watch.failed() {
            return Err(self.gone());
        }
        Ok(())
    }

    /// Waits until nothing is being freed on the GPU, for as long as a call may take. `limit` is
    /// the call's own time limit, if it has one. As long as the returned value lives, nothing is
    /// freed. Fails the communicator if the time passes: the other ranks wait for the call.
    ///
    /// Call it before anything else of the call is done on the GPU, and before taking the state,
    /// which would otherwise be held while the driver waits.
    pub(super) fn to_launch(&self, limit: Option<Duration>) -> Result<Passed<'_>, Error> {
        if let Some(passed) = self.gate.pass_within(LOOK_EVERY) {
            return Ok(passed);
        }
        let start = Instant::now();
        let limit = match limit {
            Some(limit) => limit,
            None => self.lock()?.calls.timeout,
        };
        loop {
            if let Some(passed) = self.gate.pass_within(LOOK_EVERY) {
                return Ok(passed);
            }
            if start.elapsed() >= limit {
                self.give_up(format!(
                    "no call could be launched on device {} for {limit:?}, as the driver frees \
                     dropped memory there, and waits for a kernel that does not end; memory is \
                     freed where more than half of SPARK_CCL_GPU_SET_ASIDE was dropped, or an \
                     allocation found none: raise the limit, or keep memory for later calls",
                    self.device()
                ));
            }
            if self.watch.failed() {
                return Err(self.gone());
            }
        }
    }

    /// Makes a stream wait until a call's memory may be used there. Checks for a capture again,
    /// since one may have begun while the ranks met for the call. If CUDA fails, the communicator
    /// fails on all ranks, unless the error is one of a capture.
    pub(super) fn hold_back(
        &self,
        operation: &'static str,
        regions: [&Region; 2],
        stream: &Arc<CudaStream>,
    ) -> Result<(), Error> {
        self.admit_capture(operation, regions, stream)?;
        order::hold_back(regions, stream).map_err(|error| self.lost(error))
    }

    /// Records the end of the call that is the last one now, and that consists of these parts.
    /// `limit` is its own time limit, if it has one. `None` if the call was captured.
    pub(super) fn record(
        &self,
        calls: &mut Calls,
        stream: &Arc<CudaStream>,
        parts: impl IntoIterator<Item = DevicePart>,
        limit: Option<Duration>,
    ) -> Result<Option<Arc<RecordedEvent>>, spark_ccl_cuda::Error> {
        let end = self.end(stream)?;
        if let Some(end) = &end {
            calls.was_enqueued(parts, end, limit);
            return Ok(Some(Arc::clone(end)));
        }
        calls.add_captured(parts);
        if let Some(capture) = capture_of(stream)? {
            calls.was_captured(capture, Arc::new(self.gpu.events.record(stream)?));
        }
        Ok(None)
    }

    /// An event at the end of a stream. `None` while the stream captures a graph, where the event
    /// would never occur.
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
            None if order::are_ordered_by_user(regions) => Ok(()),
            None => {
                let captured = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
                Err(no_end(self.device(), captured))
            }
        });
        told.map_err(|error| {
            were_lost(regions, &error);
            // Also if a graph is being captured: running calls are ended before their memory is
            // freed.
            self.give_up(error.to_string());
            error.of_rank(self.rank).into()
        })
    }

    /// Fails the communicator for an error of CUDA: the other ranks wait for this rank's part,
    /// which does not come.
    pub(super) fn lost(&self, error: spark_ccl_cuda::Error) -> Error {
        let error = error.of_rank(self.rank);
        if !error.is_of_a_capture() {
            self.give_up(error.to_string());
            self.record_fault();
        }
        error.into()
    }

    /// Fails the communicator on all ranks.
    pub(super) fn give_up(&self, reason: String) {
        let by = self.member();
        self.watch.raise(Fault::Aborted { by, reason });
    }

    pub(super) fn raise_timeout(&self, calls: u64, waited: Duration) {
        self.watch.raise(self.stalled(calls, waited));
    }

    /// The fault of a call that has waited for too long, with the cause if it is known by now.
    pub(super) fn stalled(&self, calls: u64, waited: Duration) -> Fault {
        self.timed_out(calls, waited, self.watch.awaited_on_device())
    }

    pub(super) fn timed_out(&self, calls: u64, waited: Duration, late: Vec<Late>) -> Fault {
        Fault::TimedOut {
            by: self.member(),
            sequence: DEVICE_MARK | calls,
            words: format!("device {}", self.device()),
            waited,
            late,
        }
    }

    /// The communicator's error, if it has failed. Records the fault first, which may take 2 s.
    pub(super) fn gone(&self) -> Error {
        self.record_fault();
        self.watch.fault().map_or_else(
            || Error::Invalid {
                operation: "device memory",
                problem: "the communicator has been finalized".to_owned(),
            },
            Error::Failed,
        )
    }

    /// Records the communicator's fault, if the user wants records of faults: the process may end
    /// when the user hears of it.
    fn record_fault(&self) {
        if let Some(notes) = &self.notes {
            notes.record_fault();
        }
    }
}

/// The error that the end of a call is not known, and why.
pub(super) fn no_end(device: usize, why: CUresult) -> spark_ccl_cuda::Error {
    spark_ccl_cuda::Error::of("cuEventRecord", device, DriverError(why))
}

impl<B> std::fmt::Debug for DeviceRank<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceRank")
            .field("rank", &self.rank)
            .field("device", &self.device())
            .finish_non_exhaustive()
    }
}
