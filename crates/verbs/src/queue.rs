//! Completion queues.

use std::fmt;
use std::ptr::{NonNull, null_mut, without_provenance_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{failed, failed_as};
use crate::{
    Completion, CompletionChannel, CompletionError, Context, Error, completion, hints, raw,
};

/// A completion queue, for any number of queue pairs. Clones share it.
#[derive(Clone)]
pub struct CompletionQueue(Arc<Queue>);

struct Queue {
    context: Context,
    channel: Option<CompletionChannel>,
    raw: NonNull<raw::ibv_cq>,
    poll: PollCq,
    id: u64,
}

type PollCq = unsafe extern "C" fn(*mut raw::ibv_cq, i32, *mut raw::ibv_wc) -> i32;

// SAFETY: libibverbs' functions may be called on a queue by any thread.
unsafe impl Send for Queue {}
// SAFETY: libibverbs' functions may be called on the same queue by several threads at once.
unsafe impl Sync for Queue {}

/// Numbers queues. Only the number is shared, so relaxed ordering is enough.
static QUEUES: AtomicU64 = AtomicU64::new(1);

impl Context {
    /// Creates a queue of at least `depth` completions, without a channel: it can only be polled.
    ///
    /// # Errors
    ///
    /// The depth is zero or beyond the device's limit, or the device has no more queues.
    pub fn completion_queue(&self, depth: u32) -> Result<CompletionQueue, Error> {
        CompletionQueue::new(self, depth, None)
    }
}

impl CompletionChannel {
    /// Creates a queue of at least `depth` completions that notifies this channel once after each
    /// [`CompletionQueue::arm`].
    ///
    /// # Errors
    ///
    /// The depth is zero or beyond the device's limit, or the device has no more queues.
    pub fn completion_queue(&self, depth: u32) -> Result<CompletionQueue, Error> {
        CompletionQueue::new(self.context(), depth, Some(self))
    }
}

impl CompletionQueue {
    fn new(
        context: &Context,
        depth: u32,
        channel: Option<&CompletionChannel>,
    ) -> Result<Self, Error> {
        // SAFETY: `context` keeps the device open, and its operations do not change.
        let poll = unsafe { (*context.raw()).ops.poll_cq };
        // Looked up first: otherwise a created queue would have to be destroyed again.
        let poll = poll.ok_or(Error::TooOld {
            call: "ibv_poll_cq",
            needs: "17",
        })?;
        let id = QUEUES.fetch_add(1, Ordering::Relaxed);
        let cqe = depth.min(i32::MAX as u32) as i32;
        let announce = channel.map_or(null_mut(), CompletionChannel::raw);
        // SAFETY: `context` keeps the device open. The channel is null, or borrowed by this
        // function, and belongs to this context. The queue's context pointer is a number that is
        // never dereferenced.
        let raw = unsafe {
            (context.api().ibv_create_cq)(
                context.raw(),
                cqe,
                without_provenance_mut(id as usize),
                announce,
                0,
            )
        };
        let raw = NonNull::new(raw).ok_or_else(|| {
            let subject = format!("{depth} completions on {}", context.name());
            failed("ibv_create_cq", subject, |errno| {
                hints::create_queue(errno, context.limits().ok())
            })
        })?;
        let (context, channel) = (context.clone(), channel.cloned());
        Ok(Self(Arc::new(Queue {
            context,
            channel,
            raw,
            poll,
            id,
        })))
    }

    /// Its number in this process, as returned by [`CompletionChannel::next`].
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// How many completions it holds.
    pub fn depth(&self) -> u32 {
        // SAFETY: `self` keeps the queue alive, and its depth does not change.
        unsafe { (*self.raw()).cqe as u32 }
    }

    /// Takes the completions that have arrived, at most as many as fit into `room`.
    ///
    /// # Errors
    ///
    /// The queue has overflowed, or the device is gone. Failed work requests are not errors of this
    /// call: they are among the results.
    pub fn poll<'r>(&self, room: &'r mut PollRoom) -> Result<Polled<'r>, Error> {
        let places = room.0.len() as i32;
        // SAFETY: `self` keeps the queue alive, and the function writes at most `places`
        // completions, the length of `room`.
        let count = unsafe { (self.0.poll)(self.raw(), places, room.0.as_mut_ptr()) };
        if count < 0 {
            return Err(failed_as(
                "ibv_poll_cq",
                -count,
                self.0.context.name(),
                hints::poll,
            ));
        }
        let arrived = room.0.get(..count as usize).unwrap_or(&room.0);
        Ok(Polled(arrived.iter()))
    }

    /// Requests one notification, for the next completion. With `solicited_only`, only the
    /// completion of a peer's solicited request, or of a failed one, counts. Poll once more
    /// afterwards, for completions that arrived before.
    ///
    /// # Errors
    ///
    /// The queue was made without a channel, or the device is gone.
    pub fn arm(&self, solicited_only: bool) -> Result<(), Error> {
        // SAFETY: `self` keeps the context open, and its operations do not change.
        let request = unsafe { (*self.0.context.raw()).ops.req_notify_cq };
        let (Some(request), Some(_)) = (request, &self.0.channel) else {
            let subject = "a completion queue without a channel";
            return Err(failed_as(
                "ibv_req_notify_cq",
                libc::EINVAL,
                subject,
                |_| String::new(),
            ));
        };
        // SAFETY: `self` keeps the queue alive, and the queue has a channel.
        match unsafe { request(self.raw(), solicited_only.into()) } {
            0 => Ok(()),
            errno => Err(failed_as(
                "ibv_req_notify_cq",
                errno,
                self.0.context.name(),
                hints::gone,
            )),
        }
    }

    pub(crate) fn context(&self) -> &Context {
        &self.0.context
    }

    pub(crate) fn raw(&self) -> *mut raw::ibv_cq {
        self.0.raw.as_ptr()
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("device", &self.0.context.name())
            .field("id", &self.0.id)
            .finish_non_exhaustive()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: queue pairs hold their queues, so none is left, and `CompletionChannel::next`
        // acknowledges every notification that it takes. Only this destroys the queue.
        let errno = unsafe { (self.context.api().ibv_destroy_cq)(self.raw.as_ptr()) };
        self.context.warn_of("ibv_destroy_cq", errno);
    }
}

/// Room for the completions of one poll, for reuse.
pub struct PollRoom([raw::ibv_wc; 32]);

impl fmt::Debug for PollRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PollRoom").finish_non_exhaustive()
    }
}

impl Default for PollRoom {
    fn default() -> Self {
        // SAFETY: `ibv_wc` holds only integers and unions of integers, for which zeros are valid.
        Self(unsafe { std::mem::zeroed() })
    }
}

/// The completions of one poll, in order.
pub struct Polled<'r>(std::slice::Iter<'r, raw::ibv_wc>);

impl Iterator for Polled<'_> {
    type Item = Result<Completion, CompletionError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(completion::translate)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for Polled<'_> {}
