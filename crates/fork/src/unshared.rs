//! Descriptors that forked children do not keep.
//!
//! The kernel closes a dead process's connections only when no child has them open. So a child puts a dead end in
//! their place: its copies of the handles find a socket that is closed, and may close it once more.

use std::fmt;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::Process;
use crate::list::List;

const NONE: RawFd = -1;

/// A descriptor that is not to be shared, or none.
struct Fd(AtomicI32);

impl Default for Fd {
    fn default() -> Self {
        Self(AtomicI32::new(NONE))
    }
}

static LIST: List<Fd> = List::new([const { Fd(AtomicI32::new(NONE)) }; 64]);
/// A socket whose other end is closed.
static DEAD_END: AtomicI32 = AtomicI32::new(NONE);

/// Something with a descriptor that children of `fork` do not keep open.
pub struct Unshared<T: AsFd> {
    value: T,
    entry: &'static Fd,
    process: Process,
}

impl<T: AsFd> Unshared<T> {
    /// From now on, children do not inherit the descriptor.
    pub fn new(value: T) -> Self {
        let process = Process::here();
        make_dead_end();
        let entry = enlist(value.as_fd().as_raw_fd());
        Self {
            value,
            entry,
            process,
        }
    }
}

impl<T: AsFd> Deref for Unshared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: AsFd> Drop for Unshared<T> {
    /// Before the value closes the descriptor, whose number may be anybody's afterwards.
    fn drop(&mut self) {
        if self.process.is_here() {
            // Pairs with the exchange in `enlist`, which takes the entry for another.
            self.entry.0.store(NONE, Ordering::Release);
        }
    }
}

impl<T: AsFd + fmt::Debug> fmt::Debug for Unshared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

fn make_dead_end() {
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

fn enlist(fd: RawFd) -> &'static Fd {
    LIST.enlist(|Fd(entry)| {
        // Pairs with the store in `drop`: an entry is free once its descriptor is no longer in it.
        let taken = entry.compare_exchange(NONE, fd, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok()
    })
}

/// In a child, while it is alone: puts the dead end in the place of all that is not to be shared.
pub(crate) fn leave_to_parent() {
    // Pairs with nothing: this process has no other thread, and its memory is a copy.
    let dead_end = DEAD_END.load(Ordering::Relaxed);
    LIST.for_each(|Fd(entry)| {
        // Pairs with nothing, like the load before. The child may take the entry for a descriptor of its own.
        let fd = entry.swap(NONE, Ordering::Relaxed);
        if fd != NONE {
            // SAFETY: both are numbers; the descriptor that is replaced is the one that was enlisted, whose
            // owner takes it off the list before it closes it.
            unsafe { libc::dup3(dead_end, fd, libc::O_CLOEXEC) };
        }
    });
}
