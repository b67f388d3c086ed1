//! The ends of a communicator: abort, revoke, and finalize.

use std::ptr;
use std::sync::atomic::Ordering;

use super::{Communicator, State, group};
use crate::error::Code;
use crate::{Error, Library};

impl Communicator {
    /// Stops at once everything enqueued or in progress, and frees everything. When one rank has
    /// failed, all others call this.
    ///
    /// # Errors
    ///
    /// NCCL fails; or the communicator is in a group, and is aborted when the group ends.
    pub fn abort(self) -> Result<(), Error> {
        const NAME: &str = "ncclCommAbort";
        if group::join(&self.inner, NAME)? {
            let in_other_thread = false;
            let operation = NAME;
            return Err(Error::Grouped {
                operation,
                in_other_thread,
            });
        }
        self.inner.abort()
    }

    /// Stops at once everything enqueued or in progress, but keeps the communicator for
    /// [`split`](Self::split), [`shrink`](Self::shrink) and [`finalize`](Self::finalize).
    ///
    /// # Errors
    ///
    /// NCCL fails, or is older than 2.28.7.
    pub fn revoke(&self) -> Result<(), Error> {
        let call = self.begin_up_to(State::Failed, "ncclCommRevoke")?;
        call.refuse_in_group()?;
        let function = call.api().ncclCommRevoke()?;
        // SAFETY: `begin_up_to` returned the handle of a live communicator of this thread.
        let code = unsafe { function(call.raw, REVOKE_DEFAULT) };
        call.finish(code)?;
        self.inner.set_state(State::Revoked);
        Ok(())
    }

    /// Waits for everything enqueued, on all ranks, and frees everything.
    ///
    /// # Errors
    ///
    /// Those of [`finalize_all`](Self::finalize_all).
    pub fn finalize(self) -> Result<(), Error> {
        Self::finalize_all(vec![self])
    }

    /// [`finalize`](Self::finalize) for several communicators of one thread at once.
    ///
    /// # Errors
    ///
    /// A communicator has failed, NCCL fails, or it does not complete in time; then all are
    /// aborted.
    pub fn finalize_all(communicators: Vec<Self>) -> Result<(), Error> {
        let Some(first) = communicators.first() else {
            return Ok(());
        };
        let library = first.inner.library;
        refuse_in_group(library)?;
        library.group(|| communicators.iter().try_for_each(Self::flush))?;
        communicators.into_iter().try_for_each(Self::destroy)
    }

    /// Starts to wait for everything enqueued. After a revoke, nothing is left to wait for.
    fn flush(&self) -> Result<(), Error> {
        let call = self.begin_up_to(State::Revoked, "ncclCommFinalize")?;
        if self.inner.state() == State::Revoked {
            return Ok(());
        }
        // SAFETY: `begin_up_to` returned the handle of a live communicator of this thread.
        let code = unsafe { (call.api().ncclCommFinalize)(call.raw) };
        call.finish(code)
    }

    fn destroy(self) -> Result<(), Error> {
        let raw = self.inner.raw.swap(ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: the swap left null, so no other call can get the handle. A communicator is not
        // shared between threads, so no other call of it is in progress.
        let code = Code(unsafe { (self.inner.library.api.ncclCommDestroy)(raw) });
        match code {
            // A nonblocking communicator may still be ending; it then frees itself.
            Code::SUCCESS | Code::IN_PROGRESS => Ok(()),
            code => Err(self.inner.failed("ncclCommDestroy", code)),
        }
    }
}

fn refuse_in_group(library: Library) -> Result<(), Error> {
    if group::is_open(library) {
        return Err(Error::Grouped {
            operation: "ncclCommFinalize",
            in_other_thread: false,
        });
    }
    Ok(())
}

/// `NCCL_REVOKE_DEFAULT`.
const REVOKE_DEFAULT: i32 = 0;
