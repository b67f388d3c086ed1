mod collectives;
mod create;
mod end;
mod group;
mod operation;
mod patience;
mod point_to_point;
mod reduction;
mod registration;

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

pub use create::ShrinkMode;
pub use patience::Patience;
pub use reduction::{PreMulSum, RedOp};
pub use registration::{Registration, Window, WindowKind};

use crate::error::Code;
use crate::raw::{Api, ncclComm, ncclComm_t, ncclCommMemStat_t};
use crate::{Error, Library};

/// One rank of a communicator, on one device.
///
/// NCCL takes one call at a time, and none while it aborts: so a communicator moves between threads,
/// but is not shared by them; with a mutex around it, any thread can abort it. A call that blocks holds
/// up the abort: where a peer may be gone, make communicators that do not block
/// ([`Config::blocking`](crate::Config::blocking)).
///
/// ```compile_fail
/// fn shared<T: Sync>() {}
/// shared::<spark_ccl_nccl::Communicator>();
/// ```
///
/// After an error other than of arguments it can only be aborted, or shrunk. When it is dropped, it is
/// aborted: what has been enqueued may not run to its end. [`finalize`](Self::finalize) waits for that.
pub struct Communicator {
    pub(crate) inner: Arc<Inner>,
    not_sync: PhantomData<Cell<()>>,
}

/// What groups share with the communicator. Its atomics carry nothing: what brings it to another
/// thread is whatever moves the communicator, or the lock of [`group`](Self::group).
pub(crate) struct Inner {
    pub(crate) library: Library,
    /// Null before NCCL has written it, and after the end.
    raw: AtomicPtr<ncclComm>,
    /// Not the address, which may be another's later.
    number: u64,
    rank: OnceLock<usize>,
    size: OnceLock<usize>,
    device: OnceLock<i32>,
    patience: Patience,
    state: AtomicU8,
    /// The number of the group that has calls of it.
    pub(crate) group: Mutex<Option<u64>>,
    /// Where NCCL may write until the communicator is aborted, and so must live as long.
    kept: Mutex<Vec<Arc<dyn Any + Send + Sync>>>,
}

/// What a communicator can do, from all to least.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Ready,
    Revoked,
    Failed,
}

/// A number that nothing else has.
pub(crate) fn serial() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // It carries nothing.
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// How far a communicator is that does not block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All calls have been done.
    Done,
    /// NCCL is still at work at a call.
    InProgress,
}

/// GPU memory that NCCL holds for a communicator, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryStats {
    /// All of it.
    pub total: u64,
    /// What can be given back for a while.
    pub suspendable: u64,
    /// What cannot.
    pub persistent: u64,
    /// Whether the suspendable part is given back now.
    pub suspended: bool,
}

impl Communicator {
    /// The number of this rank.
    ///
    /// # Errors
    ///
    /// It was made in a group that has not ended.
    pub fn rank(&self) -> Result<usize, Error> {
        let api = self.inner.library.api;
        let count = self
            .inner
            .query("ncclCommUserRank", &self.inner.rank, api.ncclCommUserRank)?;
        Ok(count)
    }

    /// How many ranks there are.
    ///
    /// # Errors
    ///
    /// As for [`rank`](Self::rank).
    pub fn size(&self) -> Result<usize, Error> {
        let api = self.inner.library.api;
        self.inner
            .query("ncclCommCount", &self.inner.size, api.ncclCommCount)
    }

    /// CUDA's number of the device, which was current on the thread that made the communicator.
    ///
    /// # Errors
    ///
    /// As for [`rank`](Self::rank).
    pub fn device(&self) -> Result<i32, Error> {
        let api = self.inner.library.api;
        self.inner
            .query("ncclCommCuDevice", &self.inner.device, api.ncclCommCuDevice)
    }

    /// What went wrong since the last call, be it in a kernel, on the network, or at a peer. Whoever
    /// waits for a stream asks this now and then; kernels of a communicator with an error may never end.
    ///
    /// # Errors
    ///
    /// What went wrong.
    pub fn async_error(&self) -> Result<Progress, Error> {
        const NAME: &str = "ncclCommGetAsyncError";
        group::join(&self.inner, NAME)?;
        match self.inner.async_code()? {
            Code::SUCCESS => Ok(Progress::Done),
            Code::IN_PROGRESS => Ok(Progress::InProgress),
            code => Err(self.inner.failed(NAME, code)),
        }
    }

    /// How long its calls are waited for, which is [`Config::timeout`](crate::Config::timeout) at first.
    pub fn patience(&self) -> Patience {
        self.inner.patience.clone()
    }

    /// The memory of the GPU that NCCL holds for it.
    ///
    /// # Errors
    ///
    /// NCCL is older than 2.29.7.
    pub fn memory_stats(&self) -> Result<MemoryStats, Error> {
        let function = self.inner.library.api.ncclCommMemStats()?;
        let read = |stat| {
            let mut value = 0;
            self.call("ncclCommMemStats", |_, raw| {
                // SAFETY: the communicator lives; a number is filled in.
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

    /// A call that needs nothing but the communicator.
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
    /// With its size and rank, where they are known before NCCL knows them.
    fn new(library: Library, timeout: Duration, of: Option<(usize, usize)>) -> Self {
        let known = |value: Option<usize>| value.map_or_else(OnceLock::new, OnceLock::from);
        Self {
            library,
            raw: AtomicPtr::new(ptr::null_mut()),
            number: serial(),
            rank: known(of.map(|(_, rank)| rank)),
            size: known(of.map(|(size, _)| size)),
            device: OnceLock::new(),
            patience: Patience::new(timeout),
            state: AtomicU8::new(State::Ready as u8),
            group: Mutex::default(),
            kept: Mutex::default(),
        }
    }

    /// The rank, where it is known.
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

    /// Whether NCCL knows of nothing that is wrong with it.
    pub(crate) fn is_fine(&self) -> bool {
        matches!(self.async_code(), Ok(Code::SUCCESS))
    }

    /// Takes a note that it can only be aborted.
    pub(crate) fn fail(&self) {
        self.set_state(State::Failed);
    }

    /// Lets something live until the communicator is aborted.
    pub(crate) fn keep(&self, what: Arc<dyn Any + Send + Sync>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push(what);
    }

    /// Turns the result of a call into a value or an error. In a group, its end settles what is in
    /// progress.
    fn settle(&self, operation: &'static str, code: u32, grouped: bool) -> Result<(), Error> {
        match Code(code) {
            Code::SUCCESS => Ok(()),
            Code::IN_PROGRESS if grouped => Ok(()),
            Code::IN_PROGRESS => self.wait(operation),
            code => Err(self.failed(operation, code)),
        }
    }

    /// As [`settle`](Self::settle), for calls of which NCCL says that they are done when it has only
    /// begun them.
    fn settle_begun(&self, operation: &'static str, code: u32, grouped: bool) -> Result<(), Error> {
        self.settle(operation, code, grouped)?;
        if grouped {
            Ok(())
        } else {
            self.wait(operation)
        }
    }

    /// Waits until NCCL has done what was called. A rank that is not in a communicator has nothing to
    /// wait for.
    pub(crate) fn wait(&self, operation: &'static str) -> Result<(), Error> {
        if self.raw().is_null() {
            return Ok(());
        }
        let start = Instant::now();
        loop {
            match self.async_code()? {
                Code::SUCCESS => return Ok(()),
                Code::IN_PROGRESS if !self.patience.is_over(start) => pause(start.elapsed()),
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
        let raw = self.made(NAME)?;
        // SAFETY: the communicator lives; a number is filled in.
        match Code(unsafe { (self.library.api.ncclCommGetAsyncError)(raw, &raw mut result) }) {
            Code::SUCCESS => Ok(Code(result)),
            code => {
                self.fail();
                Err(self.library.failed(NAME, self.rank(), code))
            }
        }
    }

    /// The error of a call; only one about arguments leaves the communicator as it was, unless NCCL keeps that, as it
    /// does for those that do not block.
    fn failed(&self, operation: &'static str, code: Code) -> Error {
        let error = self.library.failed(operation, self.rank(), code);
        let goes_on = || matches!(self.async_code(), Ok(Code::SUCCESS | Code::IN_PROGRESS));
        if code != Code::INVALID_ARGUMENT || !goes_on() {
            self.fail();
        }
        error
    }

    /// NCCL's handle, once there is one.
    fn made(&self, operation: &'static str) -> Result<ncclComm_t, Error> {
        let raw = self.raw();
        let elsewhere = false;
        let none = Error::Grouped {
            operation,
            elsewhere,
        };
        if raw.is_null() { Err(none) } else { Ok(raw) }
    }

    /// What NCCL says about the communicator, asked once.
    fn query<T: TryFrom<i32> + Copy>(
        &self,
        name: &'static str,
        known: &OnceLock<T>,
        ask: unsafe extern "C" fn(ncclComm_t, *mut i32) -> u32,
    ) -> Result<T, Error> {
        if let Some(value) = known.get() {
            return Ok(*value);
        }
        let raw = self.made(name)?;
        let mut value = 0;
        // SAFETY: the communicator lives; a number is filled in.
        let code = unsafe { ask(raw, &raw mut value) };
        match T::try_from(value) {
            Ok(value) if Code(code) == Code::SUCCESS => Ok(*known.get_or_init(|| value)),
            Ok(_) => Err(self.failed(name, Code(code))),
            Err(_) => Err(self.failed(name, Code::INTERNAL)),
        }
    }

    /// Ends what runs and frees everything.
    fn abort(&self) -> Result<(), Error> {
        let raw = self.raw.swap(ptr::null_mut(), Ordering::Relaxed);
        if raw.is_null() {
            return Ok(());
        }
        // SAFETY: nobody else has the handle now, and no call of it is under way.
        let code = Code(unsafe { (self.library.api.ncclCommAbort)(raw) });
        // One that does not block may say that it is still at it, and frees itself.
        if matches!(code, Code::SUCCESS | Code::IN_PROGRESS) {
            return Ok(());
        }
        Err(self.library.failed("ncclCommAbort", self.rank(), code))
    }
}

/// NCCL enqueues within some 10 us, and needs milliseconds to connect.
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
            tracing::warn!("{error}");
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
