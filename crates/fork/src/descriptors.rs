//! The descriptors that children are not to keep.
//!
//! The kernel closes a dead process's connections only when no child has them open. So a child puts a dead end in
//! their place: its copies of the handles find a socket that is closed, and may close it once more.

use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::list::List;

const NONE: RawFd = -1;

/// A descriptor that is not to be shared, or none.
pub(crate) struct Entry(AtomicI32);

impl Default for Entry {
    fn default() -> Self {
        Self(AtomicI32::new(NONE))
    }
}

impl Entry {
    /// The descriptor is about to be closed by its owner.
    pub(crate) fn free(&self) {
        // Pairs with the exchange in `enlist`, which takes the entry for another.
        self.0.store(NONE, Ordering::Release);
    }
}

static LIST: List<Entry> = List::new([const { Entry(AtomicI32::new(NONE)) }; 64]);
/// A socket whose other end is closed.
static DEAD_END: AtomicI32 = AtomicI32::new(NONE);

/// Makes sure of what children put in the place of descriptors.
pub(crate) fn make_dead_end() {
    // Pairs with nothing, and the exchange below neither: only the number is published, which a child reads in a
    // copy of this memory.
    if DEAD_END.load(Ordering::Relaxed) != NONE {
        return;
    }
    // Without one, children keep the descriptors: what they had before.
    let Ok((end, _closed)) = UnixStream::pair() else {
        return;
    };
    // Of several threads, which do not wait for each other here, the first one's stays.
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
        // Pairs with the store in `free`: an entry is free once its descriptor is no longer in it.
        let taken = entry.compare_exchange(NONE, fd, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok()
    })
}

/// In a child, while it is alone: puts the dead end in the place of all that is not to be shared.
pub(crate) fn leave_to_parent() {
    // Pairs with nothing: this process has no other thread, and its memory is a copy.
    let dead_end = DEAD_END.load(Ordering::Relaxed);
    LIST.for_each(|Entry(entry)| {
        // Pairs with nothing, like the load before. The child may take the entry for a descriptor of its own.
        let fd = entry.swap(NONE, Ordering::Relaxed);
        if fd != NONE {
            // SAFETY: both are numbers; the descriptor that is replaced is the one that was enlisted, whose
            // owner takes it off the list before it closes it.
            unsafe { libc::dup3(dead_end, fd, libc::O_CLOEXEC) };
        }
    });
}
