//! A communicator of NCCL's, and what is enqueued with it.

use super::calls::Place;
use super::elsewhere::elsewhere;
use super::error::{is_harmless, may_be_remote, refused};
use super::meeting::{Kind, Meeting};
use super::memory::Block;
use crate::buffer::Region;
use crate::call::{Spec, check};
use crate::communicator::Communicator;
use crate::error::Error;
use parking_lot::Mutex;
use spark_ccl_compute::{DType, Element};
use spark_ccl_control::{DEVICE, Fault, Watch};
use spark_ccl_cuda::cudarc::driver::{CudaContext, CudaStream};
use spark_ccl_cuda::{checked, is_idle};
use spark_ccl_nccl::{self as nccl, DeviceSlice, Library, Stream};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// For so long the control plane may take to name the rank whose end NCCL has noticed.
const WORD_OF_A_DEATH: Duration = Duration::from_millis(500);
/// For so long a call of NCCL's may hold up who wants to abort it.
const CALL: Duration = Duration::from_secs(5);
/// Looks at a stream between two at the clock and at the communicator.
const LOOKS: u32 = 64;

/// One rank's collectives of device memory.
pub(crate) struct Engine {
    pub(super) library: Library,
    pub(super) context: Arc<CudaContext>,
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) watch: Arc<Watch>,
    pub(super) state: Mutex<State>,
}

pub(super) struct State {
    /// `None` once it was aborted. It goes before the memory that it works in.
    pub(super) nccl: Option<nccl::Communicator>,
    pub(super) timeout: Duration,
    pub(super) calls: Calls,
    /// What is registered with it.
    pub(super) registered: Vec<Arc<Block>>,
}

/// What was enqueued.
#[derive(Default)]
pub(super) struct Calls {
    /// How much.
    pub(super) count: u64,
    /// The stream of the last one.
    pub(super) stream: Option<Arc<CudaStream>>,
    /// The kinds for which the ranks have met.
    pub(super) met: HashSet<Kind>,
}

impl Calls {
    fn note(&mut self, stream: &Arc<CudaStream>) {
        self.count += 1;
        let known = self.stream.as_ref();
        if !known.is_some_and(|known| Arc::ptr_eq(known, stream)) {
            self.stream = Some(Arc::clone(stream));
        }
    }
}

impl Engine {
    pub(super) fn device(&self) -> usize {
        self.context.ordinal()
    }

    /// Checks a call. The first of its kind is one for which NCCL may have to connect the ranks: they meet
    /// before.
    pub(super) fn begin<T: Element>(
        self: &Arc<Self>,
        comm: &Communicator,
        spec: &Spec,
        [input, output]: [&Region; 2],
        stream: &CudaStream,
    ) -> Result<Option<Meeting>, Error> {
        let operation = spec.operation.name();
        if stream.context() != &self.context {
            return Err(self.other(operation, "stream", stream.context().ordinal()));
        }
        for site in [input, output]
            .into_iter()
            .filter_map(|region| region.site.as_ref())
        {
            if site.device != self.device() {
                return Err(self.other(operation, "memory", site.device));
            }
        }
        let signature = check::signature::<T>(comm, spec, input, output)?;
        let kind = Kind::of(signature);
        match kind.filter(|kind| self.size > 1 && !self.state.lock().calls.met.contains(kind)) {
            Some(kind) => Meeting::start(comm, self, kind, signature.words()).map(Some),
            None => Ok(None),
        }
    }

    /// Enqueues a call in a stream.
    pub(super) fn call<T: Element>(
        &self,
        spec: &Spec,
        regions: [&Region; 2],
        stream: &Arc<CudaStream>,
    ) -> Result<(), Error> {
        let [input, output] = regions.map(|region| self.slice(region, T::DTYPE));
        self.with(spec.operation.name(), |calls, nccl| {
            let place = Place {
                library: self.library,
                nccl,
                rank: self.rank,
                size: self.size,
                // SAFETY: it is a stream of that device, which the caller keeps meanwhile.
                stream: unsafe {
                    Stream::from_raw(stream.cu_stream().cast(), self.device() as i32)
                },
            };
            place.enqueue::<T>(spec, input, output)?;
            calls.note(stream);
            Ok(())
        })
    }

    /// Runs a call in the stream that its memory comes with, and waits for it.
    pub(crate) fn run<T: Element>(
        self: &Arc<Self>,
        comm: &Communicator,
        spec: &Spec,
        regions: [&Region; 2],
    ) -> Result<(), Error> {
        let mut streams = regions.into_iter().filter_map(|region| {
            let site = region.site.as_ref()?;
            site.stream.clone()
        });
        let stream = streams.next();
        let stream = stream.unwrap_or_else(|| self.context.default_stream());
        for other in streams.filter(|other| *other != stream) {
            let joined = stream.join(&other);
            checked("cuStreamWaitEvent", self.device(), joined)?;
        }
        if let Some(meeting) = self.begin::<T>(comm, spec, regions, &stream)? {
            meeting.wait()?;
        }
        self.call::<T>(spec, regions, &stream)?;
        self.wait(&stream)
    }

    /// Waits until all in a stream has run, and looks whether it went well.
    pub(crate) fn wait(&self, stream: &CudaStream) -> Result<(), Error> {
        let start = Instant::now();
        let mut looks = 0_u32;
        while !is_idle(stream)? {
            looks += 1;
            if looks.is_multiple_of(LOOKS) {
                self.still_waits(start)?;
            }
            std::thread::yield_now();
        }
        // An aborted communicator's streams end early.
        self.check()
    }

    fn still_waits(&self, start: Instant) -> Result<(), Error> {
        self.check()?;
        let (timeout, calls) = {
            let state = self.state.lock();
            (state.timeout, state.calls.count)
        };
        if start.elapsed() > timeout {
            self.raise_timeout(calls, start.elapsed());
        }
        self.check()
    }

    /// The communicator's error, if it has failed; also what NCCL has noticed meanwhile.
    fn check(&self) -> Result<(), Error> {
        const NAME: &str = "ncclCommGetAsyncError";
        if let Some(fault) = self.watch.fault() {
            self.abort();
            return Err(Error::Failed(fault));
        }
        // Who holds the lock enqueues, and will hear of it.
        let Some(state) = self.state.try_lock() else {
            return Ok(());
        };
        let Some(nccl) = &state.nccl else {
            drop(state);
            return Err(self.gone());
        };
        match nccl.async_error() {
            // While it is another thread's group's, that group says.
            Ok(_) | Err(nccl::Error::Grouped { .. }) => Ok(()),
            Err(error) => {
                drop(state);
                Err(self.failed(NAME, &error))
            }
        }
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
            let State { nccl, calls, .. } = &mut *self.state.lock();
            nccl.as_ref().map(|nccl| work(calls, nccl))
        };
        match done {
            Some(done) => done.map_err(|error| self.failed(operation, &error)),
            None => Err(self.gone()),
        }
    }

    /// What NCCL says as the library's error. One after which the communicator does not work fails it on
    /// all ranks.
    pub(super) fn failed(&self, operation: &'static str, error: &nccl::Error) -> Error {
        if is_harmless(error) {
            return refused(operation, error);
        }
        if may_be_remote(error) {
            self.listen();
        }
        self.watch.raise(Fault::Aborted {
            by: self.watch.member(self.rank as u32),
            reason: error.to_string(),
        });
        self.gone()
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
            by: self.watch.member(self.rank as u32),
            sequence: DEVICE | calls,
            words: format!("the last that was enqueued on device {}", self.device()),
            waited,
            late: Vec::new(),
        });
    }

    pub(crate) fn set_timeout(&self, timeout: Duration) {
        self.state.lock().timeout = timeout;
    }

    /// Waits until all that was enqueued has run, on all ranks; all have come here.
    pub(crate) fn finalize(&self) -> Result<(), Error> {
        let (nccl, timeout) = {
            let mut state = self.state.lock();
            (state.nccl.take(), state.timeout)
        };
        let nccl = nccl.ok_or_else(|| self.gone())?;
        elsewhere("finalize", &self.watch, timeout, move || {
            let done = nccl.finalize();
            done.map_err(|error| refused("finalize", &error))
        })
    }

    /// Ends what runs. Nothing can be enqueued any more.
    pub(crate) fn abort(&self) {
        // It is held as long as a call of NCCL's takes.
        let Some(mut state) = self.state.try_lock_for(CALL) else {
            tracing::error!(
                "rank {}: NCCL does not come back from a call, and cannot be aborted meanwhile; \
                 SPARK_CCL_NCCL_BLOCKING=0 makes its calls end in time",
                self.rank
            );
            return;
        };
        let taken = state.nccl.take();
        drop(state);
        let Some(nccl) = taken else { return };
        if let Err(error) = nccl.abort() {
            tracing::warn!("rank {}: {error}", self.rank);
        }
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

    fn slice(&self, region: &Region, dtype: DType) -> DeviceSlice {
        let device = region
            .site
            .as_ref()
            .map_or(self.device(), |site| site.device);
        // SAFETY: as the buffer's trait promises.
        unsafe { DeviceSlice::from_raw(region.ptr.cast(), region.len, dtype, device as i32) }
    }

    fn other(&self, operation: &'static str, what: &str, device: usize) -> Error {
        Error::Invalid {
            operation,
            problem: format!(
                "the {what} is of device {device}, but the communicator of device {} (or it is not of the \
                 device's primary context); take what was made with `Communicator::context`",
                self.device()
            ),
        }
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("rank", &self.rank)
            .field("device", &self.device())
            .finish_non_exhaustive()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.abort();
    }
}
