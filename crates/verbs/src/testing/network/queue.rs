//! Completion queues of the network.
//!
//! # Safety
//!
//! Every function here requires the arguments that the function of the same name in libibverbs
//! requires, with objects that were made by the functions of this network.

use std::ffi::{c_int, c_void};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;

use super::super::calls::{NullChannel, boxed, free, raw_queue};
use crate::raw;

#[repr(C)]
struct Queue {
    raw: raw::ibv_cq,
    arrivals: Mutex<Receiver<Arrival>>,
    end: Arc<Arrivals>,
}

/// A completion, and the requests that it ends.
struct Arrival {
    completion: raw::ibv_wc,
    ended: Ended,
}

/// How many requests occupy the queue: each until the completion that ends it has been polled.
/// Relaxed: it orders no other memory.
#[derive(Clone)]
pub(super) struct Posted {
    count: Arc<AtomicU32>,
    most: u32,
}

/// The end of this many requests.
pub(super) struct Ended(Arc<AtomicU32>, u32);

impl Posted {
    pub(super) fn new(most: u32) -> Self {
        Self {
            count: Arc::default(),
            most,
        }
    }

    /// Adds a request, if there is room. Requests of one kind are posted by one thread at a time.
    pub(super) fn add(&self) -> bool {
        let has_room = self.count.load(Ordering::Relaxed) < self.most;
        if has_room {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        has_room
    }

    pub(super) fn ended(&self, count: u32) -> Ended {
        Ended(Arc::clone(&self.count), count)
    }
}

/// The devices' end of a completion queue. A push orders memory only for the thread that takes it
/// out.
pub(super) struct Arrivals {
    sender: Sender<Arrival>,
    /// The number of completions in the queue. Relaxed: it orders no other memory.
    count: AtomicU32,
    depth: u32,
    /// Whether the user wants to be notified: set before a last poll, taken after a push. Relaxed,
    /// with fences in between: either the poll sees the push, or the push sees the flag. Orders
    /// nothing else.
    is_armed: AtomicBool,
    /// The channel, and the number in its notifications.
    events: Option<Arc<OwnedFd>>,
    id: u64,
}

impl Arrivals {
    pub(super) fn push(&self, completion: raw::ibv_wc, ended: Ended) {
        let before = self.count.fetch_add(1, Ordering::Relaxed);
        if before >= self.depth {
            eprintln!("a completion queue of {} overflows", self.depth);
            // A panic would end only the device, and its user would wait.
            std::process::abort();
        }
        // Fails if the queue is destroyed, and then nobody polls it.
        let _ = self.sender.send(Arrival { completion, ended });
        fence(Ordering::SeqCst);
        if self.is_armed.swap(false, Ordering::Relaxed)
            && let Some(events) = &self.events
        {
            // Fails if the pipe is full: then it is readable anyway.
            let _ = rustix::io::write(events, &self.id.to_ne_bytes());
        }
    }
}

/// # Safety
///
/// The queue is from [`create_cq`], and not destroyed while the result is used.
unsafe fn of<'a>(queue: *mut raw::ibv_cq) -> &'a Queue {
    // SAFETY: `create_cq` boxed the queue as the first field of a `Queue`, which is `repr(C)`, and
    // this function requires that it exists as long as the result is used. Only shared references
    // to it are made.
    unsafe { &*queue.cast::<Queue>() }
}

/// # Safety
///
/// The queue is from [`create_cq`] and exists.
pub(super) unsafe fn arrivals(queue: *mut raw::ibv_cq) -> Arc<Arrivals> {
    // SAFETY: the queue exists, as this function requires, and is used only during this call.
    Arc::clone(&unsafe { of(queue) }.end)
}

pub(super) unsafe extern "C" fn create_cq(
    context: *mut raw::ibv_context,
    depth: c_int,
    cq_context: *mut c_void,
    channel: *mut raw::ibv_comp_channel,
    _vector: c_int,
) -> *mut raw::ibv_cq {
    // SAFETY: the channel is null or exists: `calls::create_comp_channel` boxed it as the first
    // field of a `NullChannel`, which is `repr(C)`.
    let events = unsafe { channel.cast::<NullChannel>().as_ref() };
    let (sender, arrivals) = mpsc::channel();
    let end = Arc::new(Arrivals {
        sender,
        count: AtomicU32::new(0),
        depth: depth as u32,
        is_armed: AtomicBool::new(false),
        events: events.map(|channel| Arc::clone(&channel.events)),
        id: cq_context.addr() as u64,
    });
    boxed(Queue {
        raw: raw_queue(context, depth, cq_context, channel),
        arrivals: Mutex::new(arrivals),
        end,
    })
    .cast()
}

pub(super) unsafe extern "C" fn destroy_cq(queue: *mut raw::ibv_cq) -> c_int {
    // SAFETY: the queue is freed once. `create_cq` boxed it as the first field of a `Queue`, which
    // is `repr(C)`.
    unsafe { free(queue.cast::<Queue>()) }
}

pub(super) unsafe extern "C" fn poll_cq(
    queue: *mut raw::ibv_cq,
    most: c_int,
    into: *mut raw::ibv_wc,
) -> c_int {
    // SAFETY: the caller has the queue from `create_cq`, and keeps it during the call.
    let queue = unsafe { of(queue) };
    let arrivals = queue
        .arrivals
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let mut count = 0;
    for Arrival { completion, ended } in arrivals.try_iter().take(most as usize) {
        // SAFETY: `ibv_poll_cq` demands of its caller that `into` has room for `most` completions.
        // `count` is less than that.
        unsafe { *into.add(count) = completion };
        let Ended(posted, ended) = ended;
        posted.fetch_sub(ended, Ordering::Relaxed);
        count += 1;
    }
    queue.end.count.fetch_sub(count as u32, Ordering::Relaxed);
    count as c_int
}

/// Also notifies of unsolicited completions.
pub(super) unsafe extern "C" fn req_notify_cq(queue: *mut raw::ibv_cq, _: c_int) -> c_int {
    // SAFETY: the caller has the queue from `create_cq`, and keeps it during the call.
    let is_armed = &unsafe { of(queue) }.end.is_armed;
    is_armed.store(true, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    0
}

pub(super) unsafe extern "C" fn get_cq_event(
    channel: *mut raw::ibv_comp_channel,
    queue: *mut *mut raw::ibv_cq,
    id: *mut *mut c_void,
) -> c_int {
    // SAFETY: the channel exists, and with it its descriptor, which stays open during the call.
    let reader = unsafe { BorrowedFd::borrow_raw((*channel).fd) };
    let mut bytes = [0; 8];
    match rustix::io::read(reader, &mut bytes) {
        Ok(8) => {
            // SAFETY: `ibv_get_cq_event` demands of its caller that both point to pointers that may
            // be written. The function that acknowledges events ignores the queue that is written
            // here.
            unsafe {
                *queue = null_mut();
                *id = without_provenance_mut(u64::from_ne_bytes(bytes) as usize);
            }
            0
        }
        Ok(_) => {
            Errno::EAGAIN.set();
            -1
        }
        Err(error) => {
            Errno::set_raw(error.raw_os_error());
            -1
        }
    }
}
