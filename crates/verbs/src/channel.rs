//! Completion channels: waiting for completions without polling.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use nix::errno::Errno;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::error::{failed, failed_as};
use crate::{Context, Error, hints, raw};

/// A descriptor to wait on, for example by `poll`, for completions of any number of queues. Clones
/// share it.
#[derive(Clone)]
pub struct CompletionChannel(Arc<Channel>);

struct Channel {
    context: Context,
    raw: NonNull<raw::ibv_comp_channel>,
}

// SAFETY: libibverbs' functions may be called on a channel by any thread.
unsafe impl Send for Channel {}
// SAFETY: libibverbs' functions may be called on the same channel by several threads at once.
unsafe impl Sync for Channel {}

impl Context {
    /// Creates a channel to wait on for completions.
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
        // SAFETY: `context` keeps the device open, and its handle valid.
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

    /// Takes a notification, if there is one, and returns the [id](crate::CompletionQueue::id) of
    /// its queue, which is then no longer armed. Does not block.
    ///
    /// # Errors
    ///
    /// The device is gone.
    pub fn next(&self) -> Result<Option<u64>, Error> {
        let (mut queue, mut id) = (null_mut(), null_mut());
        let api = self.0.context.api();
        // SAFETY: `self` keeps the channel alive, and the function writes the two pointers, which
        // are locals.
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
        // SAFETY: the notification was taken by the call above and is acknowledged once. Its queue
        // still exists: destroying a queue waits until every notification that was taken is
        // acknowledged.
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
    /// A descriptor that becomes readable when [`CompletionChannel::next`] has a notification.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel, which `self` keeps alive for the
        // lifetime of the borrow.
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
        // SAFETY: queues hold their channel, so none is left. Only this destroys the channel.
        let errno = unsafe { (self.context.api().ibv_destroy_comp_channel)(self.raw.as_ptr()) };
        self.context.warn_of("ibv_destroy_comp_channel", errno);
    }
}
