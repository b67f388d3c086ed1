use std::ptr;
use std::sync::atomic::Ordering;

use super::{Communicator, State, group};
use crate::error::Code;
use crate::{Error, Library};

impl Communicator {
    /// Ends at once what runs and what is under way, and frees everything. When one rank is gone, all
    /// others do this.
    ///
    /// # Errors
    ///
    /// NCCL fails; or it is in a group, and is aborted when that ends.
    pub fn abort(self) -> Result<(), Error> {
        const NAME: &str = "ncclCommAbort";
        if group::join(&self.inner, NAME)? {
            let elsewhere = false;
            let operation = NAME;
            return Err(Error::Grouped {
                operation,
                elsewhere,
            });
        }
        self.inner.abort()
    }

    /// Ends at once what runs and what is under way, but keeps the communicator for
    /// [`split`](Self::split), [`shrink`](Self::shrink) and [`finalize`](Self::finalize).
    ///
    /// # Errors
    ///
    /// NCCL fails, or is older than 2.28.7.
    pub fn revoke(&self) -> Result<(), Error> {
        let call = self.begin_up_to(State::Failed, "ncclCommRevoke")?;
        call.alone()?;
        let function = call.api().ncclCommRevoke()?;
        // SAFETY: the communicator lives, and is this thread's.
        let code = unsafe { function(call.raw, REVOKE_DEFAULT) };
        call.finish(code)?;
        self.inner.set_state(State::Revoked);
        Ok(())
    }

    /// Waits for all that has been enqueued, on all ranks, and frees everything.
    ///
    /// # Errors
    ///
    /// As for [`finalize_all`](Self::finalize_all).
    pub fn finalize(self) -> Result<(), Error> {
        Self::finalize_all(vec![self])
    }

    /// [`finalize`](Self::finalize) for several communicators of one thread at once.
    ///
    /// # Errors
    ///
    /// One has failed, NCCL fails, or it is not done in time; then all are aborted.
    pub fn finalize_all(communicators: Vec<Self>) -> Result<(), Error> {
        let Some(first) = communicators.first() else {
            return Ok(());
        };
        let library = first.inner.library;
        alone(library)?;
        library.group(|| communicators.iter().try_for_each(Self::flush))?;
        communicators.into_iter().try_for_each(Self::destroy)
    }

    /// Starts to wait for all that has been enqueued; what was revoked has nothing left.
    fn flush(&self) -> Result<(), Error> {
        let call = self.begin_up_to(State::Revoked, "ncclCommFinalize")?;
        if self.inner.state() == State::Revoked {
            return Ok(());
        }
        // SAFETY: the communicator lives, and is this thread's.
        let code = unsafe { (call.api().ncclCommFinalize)(call.raw) };
        call.finish(code)
    }

    fn destroy(self) -> Result<(), Error> {
        let raw = self.inner.raw.swap(ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: nobody else has the handle now, and no call of it is under way.
        let code = Code(unsafe { (self.inner.library.api.ncclCommDestroy)(raw) });
        match code {
            // One that does not block may still be at it, and frees itself.
            Code::SUCCESS | Code::IN_PROGRESS => Ok(()),
            code => Err(self.inner.failed("ncclCommDestroy", code)),
        }
    }
}

fn alone(library: Library) -> Result<(), Error> {
    if group::is_open(library) {
        return Err(Error::Grouped {
            operation: "ncclCommFinalize",
            elsewhere: false,
        });
    }
    Ok(())
}

/// `NCCL_REVOKE_DEFAULT`.
const REVOKE_DEFAULT: i32 = 0;
