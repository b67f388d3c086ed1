//! Replaces registered descriptors in a forked child, so that the child does not keep the parent's
//! connections open.
//!
//! The kernel closes a dead process's connections only when no child has them open. So a child
//! replaces each registered descriptor by a socket whose other end is closed. Its copies of the
//! handles see a closed connection, and may close the descriptor as usual.

use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::list::List;

const NONE: RawFd = -1;

/// A descriptor that children must not keep, or none.
pub(crate) struct Entry(AtomicI32);

impl Default for Entry {
    fn default() -> Self {
        Self(AtomicI32::new(NONE))
    }
}

impl Entry {
    /// Replaces the descriptor by the dead end, and frees the entry. The owner is about to close
    /// the descriptor.
    ///
    /// A child that is forked in between has the dead end, whether it finds the entry or not.
    pub(crate) fn free(&self) {
        // Pairs with nothing: only the owner changes an entry that is taken.
        replace(self.0.load(Ordering::Relaxed));
        // Pairs with the exchange in `enlist` that reuses the entry.
        self.0.store(NONE, Ordering::Release);
    }
}

static LIST: List<Entry> = List::new([const { Entry(AtomicI32::new(NONE)) }; 64]);
/// A socket whose other end is closed.
static DEAD_END: AtomicI32 = AtomicI32::new(NONE);

/// Creates the dead end on the first call.
pub(crate) fn make_dead_end() {
    // Pairs with nothing, nor does the exchange below: only the number is published, and a child
    // reads it from its copy of this memory.
    if DEAD_END.load(Ordering::Relaxed) != NONE {
        return;
    }
    // Without a dead end, children keep the descriptors, as they would without this crate.
    let Ok((end, other)) = UnixStream::pair() else {
        return;
    };
    // Closed before a child can find `end`: the child would have a copy of `other`, which nobody
    // closes.
    drop(other);
    // Threads do not wait for each other here. If several get here, the first one's socket stays.
    let (relaxed, fd) = (Ordering::Relaxed, end.as_raw_fd());
    if DEAD_END
        .compare_exchange(NONE, fd, relaxed, relaxed)
        .is_ok()
    {
        std::mem::forget(end);
    }
}

/// From now on, children do not keep the descriptor.
pub(crate) fn enlist(fd: RawFd) -> &'static Entry {
    LIST.enlist(|Entry(entry)| {
        // Pairs with the store in `free`.
        let taken = entry.compare_exchange(NONE, fd, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok()
    })
}

/// Replaces every registered descriptor by the dead end. Called in a child while it has a single
/// thread.
pub(crate) fn leave_to_parent() {
    LIST.for_each(|Entry(entry)| {
        // Pairs with nothing: this process has no other thread. The entry becomes free for the
        // child's own descriptors.
        let fd = entry.swap(NONE, Ordering::Relaxed);
        if fd != NONE {
            replace(fd);
        }
    });
}

/// Replaces a descriptor on the list by the dead end, which closes it in this process.
/// Async-signal-safe.
fn replace(fd: RawFd) {
    // Pairs with nothing: it was there before the descriptor was on the list.
    let dead_end = DEAD_END.load(Ordering::Relaxed);
    // SAFETY: `dup3` accesses no memory of this process. `fd` is still the descriptor that was
    // enlisted, because its owner frees the entry before it closes the descriptor. Without a dead
    // end the call fails, and changes nothing.
    unsafe { libc::dup3(dead_end, fd, libc::O_CLOEXEC) };
}
