use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use nix::errno::Errno;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::error::{failed, failed_as};
use crate::{Context, Error, hints, raw};

/// Something to wait on, by `poll` and its like, for completions of any number of queues.
/// Clones are the same.
#[derive(Clone)]
pub struct CompletionChannel(Arc<Channel>);

struct Channel {
    context: Context,
    raw: NonNull<raw::ibv_comp_channel>,
}

// SAFETY: libibverbs' functions may be called by several threads on the same channel.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Context {
    /// Something to wait on for completions.
    ///
    /// # Errors
    ///
    /// The process has no more file descriptors.
    pub fn completion_channel(&self) -> Result<CompletionChannel, Error> {
        CompletionChannel::new(self)
    }
}

impl CompletionChannel {
    fn new(context: &Context) -> Result<Self, Error> {
        // SAFETY: the context is open.
        let raw = NonNull::new(unsafe { (context.api().ibv_create_comp_channel)(context.raw()) })
            .ok_or_else(|| {
            failed("ibv_create_comp_channel", context.name(), hints::resources)
        })?;
        let channel = Self(Arc::new(Channel {
            context: context.clone(),
            raw,
        }));
        let fd = channel.as_fd();
        let set = fcntl_getfl(fd).and_then(|flags| fcntl_setfl(fd, flags | OFlags::NONBLOCK));
        set.map_err(|errno| {
            failed_as("fcntl", errno.raw_os_error(), context.name(), |_| {
                String::new()
            })
        })?;
        Ok(channel)
    }

    /// Takes an announcement, if there is one, and says which queue it is of
    /// ([`CompletionQueue::id`](crate::CompletionQueue::id)); it does not block. The queue is no longer armed then.
    ///
    /// # Errors
    ///
    /// The device is gone.
    pub fn next(&self) -> Result<Option<u64>, Error> {
        let (mut queue, mut id) = (null_mut(), null_mut());
        let api = self.0.context.api();
        // SAFETY: the channel lives, and the function writes both pointers.
        let result = unsafe { (api.ibv_get_cq_event)(self.raw(), &raw mut queue, &raw mut id) };
        if result != 0 {
            return match Errno::last() {
                Errno::EAGAIN | Errno::EINTR => Ok(None),
                _ => Err(failed(
                    "ibv_get_cq_event",
                    self.0.context.name(),
                    hints::gone,
                )),
            };
        }
        // SAFETY: the announcement was taken just now, and is acknowledged once. The queue lives
        // until then: destroying it waits for this.
        unsafe { (api.ibv_ack_cq_events)(queue, 1) };
        Ok(Some(id.addr() as u64))
    }

    pub(crate) fn context(&self) -> &Context {
        &self.0.context
    }

    pub(crate) fn raw(&self) -> *mut raw::ibv_comp_channel {
        self.0.raw.as_ptr()
    }
}

impl AsFd for CompletionChannel {
    /// What is readable when [`CompletionChannel::next`] has something.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel.
        unsafe { BorrowedFd::borrow_raw((*self.raw()).fd) }
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CompletionChannel")
            .field(&self.0.context.name())
            .finish()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: the channel's queues hold it, so none is left.
        let errno = unsafe { (self.context.api().ibv_destroy_comp_channel)(self.raw.as_ptr()) };
        if errno != 0 {
            tracing::warn!(
                device = self.context.name(),
                errno,
                "ibv_destroy_comp_channel failed"
            );
        }
    }
}
