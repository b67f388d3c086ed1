//! Calls in flight, for which a request or a group waits, and calls that start when their group
//! ends.

use std::sync::Arc;

use spark_ccl::{Pending, UntypedCall};
use spark_ccl_log::Mutex;

use crate::comm::{Comm, Planned};
use crate::failure::Failure;

/// A call under way. Its communicator stays until the call is done.
pub struct Started {
    /// `None` once a thread waits for the call.
    pending: Mutex<Option<Pending<()>>>,
    comm: Arc<dyn Comm>,
}

/// A call that starts at the end of its group.
pub struct Held {
    comm: Arc<dyn Comm>,
    call: UntypedCall,
}

/// A call that only the owner of this value can wait for.
pub struct Taken(Pending<()>);

/// The call that is done, of several, and its result.
#[derive(Debug)]
pub struct Ended {
    /// The call's place among them.
    pub place: usize,
    /// The call's result.
    pub outcome: Result<(), Failure>,
}

impl Held {
    /// Checks a call.
    ///
    /// # Safety
    /// The call's buffers are as [`start_untyped`](spark_ccl::Communicator::start_untyped) demands
    /// until the returned value was dropped, or the call that it has started is done.
    ///
    /// # Errors
    /// Those of [`check_untyped`](spark_ccl::Communicator::check_untyped).
    pub unsafe fn new(comm: Arc<dyn Comm>, call: UntypedCall) -> Result<Self, Failure> {
        comm.inner().check_untyped(&call)?;
        Ok(Self { comm, call })
    }

    /// The call, which is not started.
    pub(crate) fn call(&self) -> &UntypedCall {
        &self.call
    }

    /// Copies the message that the call sends, and has the call send the copy.
    ///
    /// # Safety
    /// `copy` has room for the message. Nothing else uses it until the held call was dropped, or
    /// the call that it has started is done.
    pub(crate) unsafe fn send_from(&mut self, copy: *mut u8) {
        let (sent, size) = (self.call.sent(), self.call.dtype().size());
        // SAFETY: the caller of `new` keeps the message that the call sends initialised. The caller
        // has room for it at `copy`, which nothing else uses, so the two do not overlap.
        unsafe { copy.copy_from_nonoverlapping(sent.cast(), sent.len()) };
        self.call = self.call.clone().send(copy, sent.len() / size);
    }

    /// The call, which is not started, and its communicator.
    pub(crate) fn into_call(self) -> Planned {
        (self.comm, self.call)
    }

    /// Starts the call.
    ///
    /// # Errors
    /// Those of `start_untyped`.
    pub fn start(self) -> Result<Started, Failure> {
        // SAFETY: until the call is done, the caller of `new`, or of `send_from` for a copy, keeps
        // the memory that it sends initialised and unchanged. The caller of `new` keeps the memory
        // that it receives writable, and lets nobody else use that.
        unsafe { Started::start(self.comm, &self.call) }
    }
}

impl Started {
    /// Starts a call.
    ///
    /// # Safety
    /// The call's buffers are as [`start_untyped`](spark_ccl::Communicator::start_untyped) demands
    /// until the call is done, even if the returned value is dropped earlier.
    ///
    /// # Errors
    /// Those of `start_untyped`.
    pub unsafe fn start(comm: Arc<dyn Comm>, call: &UntypedCall) -> Result<Self, Failure> {
        // SAFETY: the call is done at last also if the returned value is dropped earlier. Until
        // then, the caller keeps the memory that it sends initialised and unchanged. The caller
        // keeps the memory that it receives writable, and lets nobody else use that.
        let pending = unsafe { comm.inner().start_untyped(call) };
        let pending = pending.map_err(|error| comm.explain(error.into()))?;
        Ok(Self {
            pending: Mutex::new(Some(pending)),
            comm,
        })
    }

    /// Whether the call is done. Makes progress.
    pub fn test(&self) -> bool {
        // A thread that waits has taken it.
        self.pending.lock().as_ref().is_some_and(Pending::test)
    }

    /// Waits for the call.
    ///
    /// # Errors
    /// The call's, and those of [`take`](Self::take).
    pub fn wait(&self) -> Result<(), Failure> {
        let waited = self.take()?.wait();
        waited.map_err(|failure| self.comm.explain(failure))
    }

    /// Waits until one of several calls is done, and returns its place and result; `None` if `all`
    /// is empty.
    ///
    /// # Errors
    /// The one that cannot be waited for, and why.
    pub fn wait_any(all: &[Arc<Self>]) -> Result<Option<Ended>, (usize, Failure)> {
        let mut taken = Vec::with_capacity(all.len());
        for started in all {
            match started.take() {
                Ok(Taken(pending)) => taken.push(pending),
                Err(failure) => {
                    let failed = taken.len();
                    put_back(all, taken);
                    return Err((failed, failure));
                }
            }
        }
        let Some(place) = Pending::wait_any(&taken) else {
            return Ok(None);
        };
        let ended = taken.remove(place);
        put_back(&all[..place], taken.drain(..place));
        put_back(&all[place + 1..], taken);
        let outcome = Taken(ended).wait();
        Ok(Some(Ended { place, outcome }))
    }

    /// Takes the call, so that nobody else can wait for it.
    ///
    /// # Errors
    /// Another thread waits for it.
    pub fn take(&self) -> Result<Taken, Failure> {
        let pending = self.pending.lock().take();
        pending.map(Taken).ok_or_else(|| {
            Failure::invalid("this request is waited for twice: by another thread, or in one list")
        })
    }
}

fn put_back(all: &[Arc<Started>], taken: impl IntoIterator<Item = Pending<()>>) {
    for (started, pending) in all.iter().zip(taken) {
        *started.pending.lock() = Some(pending);
    }
}

impl Taken {
    /// Waits for the call.
    ///
    /// # Errors
    /// The call's.
    pub fn wait(self) -> Result<(), Failure> {
        self.0.wait().map_err(|failed| failed.error.into())
    }
}
