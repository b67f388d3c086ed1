//! A rank of a communicator: its state, its waits for NCCL, and its handle. The calls are in the
//! submodules.

mod call_timeout;
mod collectives;
mod create;
mod end;
mod group;
mod operation;
mod point_to_point;
mod reduction;
mod registration;

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

pub use call_timeout::CallTimeout;
pub use create::ShrinkMode;
pub use reduction::{PreMulSum, RedOp};
pub use registration::{Registration, Window, WindowKind};
use spark_ccl_log::Mutex;

use crate::error::Code;
use crate::raw::{Api, ncclComm, ncclComm_t, ncclCommMemStat_t};
use crate::{Error, Library};

/// One rank of a communicator, on one device.
///
/// NCCL takes one call at a time, and none while it aborts. A communicator can therefore move
/// between threads, but threads cannot share it; with a mutex around it, any thread can abort it. A
/// blocking call delays the abort: where a peer may fail, make communicators that do not block
/// ([`Config::blocking`](crate::Config::blocking)).
///
/// ```compile_fail
/// fn shared<T: Sync>() {}
/// shared::<spark_ccl_nccl::Communicator>();
/// ```
///
/// After an error, other than one about an argument, it can only be aborted or shrunk. Dropping it
/// aborts it: enqueued operations may not complete. [`finalize`](Self::finalize) waits for them.
pub struct Communicator {
    pub(crate) inner: Arc<Inner>,
    not_sync: PhantomData<Cell<()>>,
}

/// The part of a communicator that its group shares. Its atomics order nothing else: whatever moves
/// the communicator to another thread, or the lock of `group`, synchronizes the threads.
pub(crate) struct Inner {
    pub(crate) library: Library,
    /// Null until NCCL has written it, and after the end.
    raw: AtomicPtr<ncclComm>,
    /// Identifies the communicator. Its address does not: a later one may have the same.
    number: u64,
    rank: OnceLock<usize>,
    size: OnceLock<usize>,
    device: OnceLock<i32>,
    call_timeout: CallTimeout,
    state: AtomicU8,
    /// The number of the open group that this communicator has calls in.
    pub(crate) group: Mutex<Option<u64>>,
    /// Memory that NCCL may write until the communicator is aborted, and that must live until then.
    kept: Mutex<Vec<Arc<dyn Any + Send + Sync>>>,
}

/// The calls that a communicator still allows, from the best state to the worst.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Ready,
    Revoked,
    Failed,
}

/// A number that is unique in this process.
pub(crate) fn serial() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Relaxed: only the number's uniqueness matters.
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The progress of a nonblocking communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All calls are complete.
    Done,
    /// NCCL still works on a call.
    InProgress,
}

/// GPU memory that NCCL holds for a communicator, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryStats {
    /// The sum.
    pub total: u64,
    /// The part that can be released temporarily.
    pub suspendable: u64,
    /// The part that cannot.
    pub persistent: u64,
    /// Whether the suspendable part is released now.
    pub suspended: bool,
}

impl Communicator {
    /// The number of this rank.
    ///
    /// # Errors
    ///
    /// The communicator was made in a group that has not ended.
    pub fn rank(&self) -> Result<usize, Error> {
        let api = self.inner.library.api;
        let count = self
            .inner
            .query("ncclCommUserRank", &self.inner.rank, api.ncclCommUserRank)?;
        Ok(count)
    }

    /// The number of ranks.
    ///
    /// # Errors
    ///
    /// Those of [`rank`](Self::rank).
    pub fn size(&self) -> Result<usize, Error> {
        let api = self.inner.library.api;
        self.inner
            .query("ncclCommCount", &self.inner.size, api.ncclCommCount)
    }

    /// CUDA's ordinal of the device, which was current on the thread that made the communicator.
    ///
    /// # Errors
    ///
    /// Those of [`rank`](Self::rank).
    pub fn device(&self) -> Result<i32, Error> {
        let api = self.inner.library.api;
        self.inner
            .query("ncclCommCuDevice", &self.inner.device, api.ncclCommCuDevice)
    }

    /// Returns an error that has happened since the last call, in a kernel, on the network or at a
    /// peer. Poll it while waiting for a stream: kernels of a communicator with an error may never
    /// end.
    ///
    /// # Errors
    ///
    /// The error that has happened.
    pub fn async_error(&self) -> Result<Progress, Error> {
        const NAME: &str = "ncclCommGetAsyncError";
        group::join(&self.inner, NAME)?;
        match self.inner.async_code()? {
            Code::SUCCESS => Ok(Progress::Done),
            Code::IN_PROGRESS => Ok(Progress::InProgress),
            code => Err(self.inner.failed(NAME, code)),
        }
    }

    /// The time limit of its calls: at first [`Config::timeout`](crate::Config::timeout).
    pub fn call_timeout(&self) -> CallTimeout {
        self.inner.call_timeout.clone()
    }

    /// The GPU memory that NCCL holds for the communicator.
    ///
    /// # Errors
    ///
    /// NCCL is older than 2.29.7.
    pub fn memory_stats(&self) -> Result<MemoryStats, Error> {
        let function = self.inner.library.api.ncclCommMemStats()?;
        let read = |stat| {
            let mut value = 0;
            self.call("ncclCommMemStats", |_, raw| {
                // SAFETY: `raw` is the handle of a live communicator, and NCCL writes one number to
                // `value`.
                unsafe { function(raw, stat, &raw mut value) }
            })?;
            Ok::<_, Error>(value)
        };
        Ok(MemoryStats {
            total: read(ncclCommMemStat_t::ncclStatGpuMemTotal)?,
            suspendable: read(ncclCommMemStat_t::ncclStatGpuMemSuspend)?,
            persistent: read(ncclCommMemStat_t::ncclStatGpuMemPersist)?,
            suspended: read(ncclCommMemStat_t::ncclStatGpuMemSuspended)? != 0,
        })
    }

    /// Makes a call that takes only the communicator.
    fn call(
        &self,
        name: &'static str,
        call: impl FnOnce(&'static Api, ncclComm_t) -> u32,
    ) -> Result<(), Error> {
        let operation = self.begin(name)?;
        let code = call(operation.api(), operation.raw);
        operation.finish(code)
    }
}

impl Inner {
    /// With its size and rank, if these are known before NCCL has made the communicator.
    fn new(library: Library, timeout: Duration, of: Option<(usize, usize)>) -> Self {
        let known = |value: Option<usize>| value.map_or_else(OnceLock::new, OnceLock::from);
        Self {
            library,
            raw: AtomicPtr::new(ptr::null_mut()),
            number: serial(),
            rank: known(of.map(|(_, rank)| rank)),
            size: known(of.map(|(size, _)| size)),
            device: OnceLock::new(),
            call_timeout: CallTimeout::new(timeout),
            state: AtomicU8::new(State::Ready as u8),
            group: Mutex::default(),
            kept: Mutex::default(),
        }
    }

    /// The rank, if it is known.
    pub(crate) fn rank(&self) -> Option<usize> {
        self.rank.get().copied()
    }

    fn raw(&self) -> ncclComm_t {
        self.raw.load(Ordering::Relaxed)
    }

    fn state(&self) -> State {
        match self.state.load(Ordering::Relaxed) {
            0 => State::Ready,
            1 => State::Revoked,
            _ => State::Failed,
        }
    }

    fn set_state(&self, state: State) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    /// Whether NCCL reports no error of the communicator.
    pub(crate) fn has_no_error(&self) -> bool {
        matches!(self.async_code(), Ok(Code::SUCCESS))
    }

    /// Records that the communicator can only be aborted.
    pub(crate) fn fail(&self) {
        self.set_state(State::Failed);
    }

    /// Keeps an object alive until the communicator is aborted.
    pub(crate) fn keep(&self, what: Arc<dyn Any + Send + Sync>) {
        let mut kept = self.kept.lock();
        kept.push(what);
    }

    /// Turns NCCL's result into the call's, and waits if the call is in progress. In a group, the
    /// end of the group waits instead.
    fn settle(&self, operation: &'static str, code: u32, grouped: bool) -> Result<(), Error> {
        match Code(code) {
            Code::SUCCESS => Ok(()),
            Code::IN_PROGRESS if grouped => Ok(()),
            Code::IN_PROGRESS => self.wait(operation),
            code => Err(self.failed(operation, code)),
        }
    }

    /// Like [`settle`](Self::settle), for calls whose success only means that NCCL has started
    /// them.
    fn settle_begun(&self, operation: &'static str, code: u32, grouped: bool) -> Result<(), Error> {
        self.settle(operation, code, grouped)?;
        if grouped {
            Ok(())
        } else {
            self.wait(operation)
        }
    }

    /// Waits until NCCL has completed the call. A rank outside the new communicator has nothing to
    /// wait for.
    pub(crate) fn wait(&self, operation: &'static str) -> Result<(), Error> {
        if self.raw().is_null() {
            return Ok(());
        }
        let (start, limit) = (Instant::now(), self.call_timeout.get());
        loop {
            match self.async_code()? {
                Code::SUCCESS => return Ok(()),
                Code::IN_PROGRESS if !self.call_timeout.is_over(start, limit) => {
                    pause(start.elapsed());
                }
                Code::IN_PROGRESS => {
                    self.fail();
                    return Err(Error::Timeout {
                        operation,
                        rank: self.rank(),
                        waited: start.elapsed(),
                    });
                }
                code => return Err(self.failed(operation, code)),
            }
        }
    }

    fn async_code(&self) -> Result<Code, Error> {
        const NAME: &str = "ncclCommGetAsyncError";
        let mut result = 0;
        let raw = self.handle(NAME)?;
        // SAFETY: `raw` is the handle of a live communicator, and NCCL writes one number to
        // `result`.
        match Code(unsafe { (self.library.api.ncclCommGetAsyncError)(raw, &raw mut result) }) {
            Code::SUCCESS => Ok(Code(result)),
            code => {
                self.fail();
                Err(self.library.failed(NAME, self.rank(), code))
            }
        }
    }

    /// The error of a call. Only an invalid argument leaves the communicator usable, and not if
    /// NCCL records it as the communicator's error, as it does for nonblocking communicators.
    fn failed(&self, operation: &'static str, code: Code) -> Error {
        let error = self.library.failed(operation, self.rank(), code);
        let goes_on = || matches!(self.async_code(), Ok(Code::SUCCESS | Code::IN_PROGRESS));
        if code != Code::INVALID_ARGUMENT || !goes_on() {
            self.fail();
        }
        error
    }

    /// NCCL's handle, if NCCL has made the communicator.
    fn handle(&self, operation: &'static str) -> Result<ncclComm_t, Error> {
        let raw = self.raw();
        let in_other_thread = false;
        let none = Error::Grouped {
            operation,
            in_other_thread,
        };
        if raw.is_null() { Err(none) } else { Ok(raw) }
    }

    /// Asks NCCL for a property of the communicator, once.
    fn query<T: TryFrom<i32> + Copy>(
        &self,
        name: &'static str,
        known: &OnceLock<T>,
        ask: unsafe extern "C" fn(ncclComm_t, *mut i32) -> u32,
    ) -> Result<T, Error> {
        if let Some(value) = known.get() {
            return Ok(*value);
        }
        let raw = self.handle(name)?;
        let mut value = 0;
        // SAFETY: `raw` is the handle of a live communicator, and `ask` writes one number to
        // `value`.
        let code = unsafe { ask(raw, &raw mut value) };
        match T::try_from(value) {
            Ok(value) if Code(code) == Code::SUCCESS => Ok(*known.get_or_init(|| value)),
            Ok(_) => Err(self.failed(name, Code(code))),
            Err(_) => Err(self.failed(name, Code::INTERNAL)),
        }
    }

    /// Stops everything that runs and frees everything.
    fn abort(&self) -> Result<(), Error> {
        let raw = self.raw.swap(ptr::null_mut(), Ordering::Relaxed);
        if raw.is_null() {
            return Ok(());
        }
        // SAFETY: the swap left null, so no other call can get the handle. A communicator is not
        // shared between threads, so no other call of it is in progress.
        let code = Code(unsafe { (self.library.api.ncclCommAbort)(raw) });
        // A nonblocking communicator may still be aborting; it then frees itself.
        if matches!(code, Code::SUCCESS | Code::IN_PROGRESS) {
            return Ok(());
        }
        Err(self.library.failed("ncclCommAbort", self.rank(), code))
    }
}

/// NCCL enqueues within about 10 us, but needs milliseconds to connect.
fn pause(waited: Duration) {
    if waited < Duration::from_millis(1) {
        std::thread::yield_now();
    } else {
        std::thread::sleep(Duration::from_micros(100));
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Err(error) = self.abort() {
            spark_ccl_log::warn!("{error}");
        }
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator")
            .field("rank", &self.inner.rank.get())
            .field("size", &self.inner.size.get())
            .field("device", &self.inner.device.get())
            .finish_non_exhaustive()
    }
}
