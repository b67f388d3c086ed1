//! Replaces registered shared memory by private zero pages in a forked child.
//!
//! A child inherits its parent's mappings. Of shared memory, it gets the memory itself, and no
//! copy. A write to a buffer that it believes to be its own would reach its parent and all other
//! processes. So the handler maps private zeros at the same address. It cannot make a copy: other
//! processes write during the fork.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::list::List;

/// `start` of a free entry, and of one that is being filled.
const FREE: usize = 0;
const TAKEN: usize = 1;

/// Memory that children must not share, or none.
pub(crate) struct Range {
    start: AtomicUsize,
    bytes: AtomicUsize,
}

impl Range {
    const fn new() -> Self {
        Self {
            start: AtomicUsize::new(FREE),
            bytes: AtomicUsize::new(0),
        }
    }

    fn take(&self) -> bool {
        // Pairs with the store in `free`.
        let taken = self
            .start
            .compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok()
    }

    /// Frees the entry. The owner is about to unmap the memory.
    pub(crate) fn free(&self) {
        // Pairs with the exchange in `take` that reuses the entry.
        self.start.store(FREE, Ordering::Release);
    }
}

impl Default for Range {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Pairs with nothing: for debug output only.
        let start = self.start.load(Ordering::Relaxed);
        write!(f, "{start:#x}")
    }
}

static LIST: List<Range> = List::new([const { Range::new() }; 64]);

/// From now on, children do not share this memory.
///
/// # Safety
/// The range consists of whole pages, mapped for reading and writing, and stays mapped until the
/// entry is freed. Zeros are a valid value for every use of the memory.
pub(crate) unsafe fn enlist(start: NonNull<u8>, bytes: usize) -> &'static Range {
    let entry = LIST.enlist(Range::take);
    // Pairs with nothing: the store that follows publishes it.
    entry.bytes.store(bytes, Ordering::Relaxed);
    // Pairs with the swap in `leave_to_parent`, in a child's copy of this memory: it sees the
    // length as well.
    entry
        .start
        .store(start.as_ptr() as usize, Ordering::Release);
    entry
}

/// Replaces every registered range by zeros. Called in a child while it has a single thread.
pub(crate) fn leave_to_parent() {
    LIST.for_each(|Range { start, bytes }| {
        // Pairs with the store in `enlist`. The entry becomes free for the child's own memory.
        let start = start.swap(FREE, Ordering::Acquire);
        if start == FREE || start == TAKEN {
            return;
        }
        // Pairs with nothing: the swap above has acquired it.
        let bytes = bytes.load(Ordering::Relaxed);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: by the contract of `enlist` the range is whole pages that are still mapped, so
        // nothing else is replaced, and zeros are valid for every use of it. The child has no other
        // thread that could be accessing it.
        let mapped = unsafe { libc::mmap(start as *mut libc::c_void, bytes, access, flags, -1, 0) };
        if mapped == libc::MAP_FAILED {
            // The child would otherwise go on to write to its parent's memory.
            //
            // SAFETY: `abort` has no preconditions, and is async-signal-safe.
            unsafe { libc::abort() };
        }
    });
}
