//! The memory that children are not to share.
//!
//! A child inherits what its parent maps. Of memory that is shared with other processes it gets no copy, but the memory
//! itself, so that what it writes to buffers which it takes for its own reaches its parent and everyone else. So it
//! finds zeros of its own there, at the same address: a copy would have to be made at each fork, while others write.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::list::List;

/// The address of an entry that is free, and of one that is being filled.
const FREE: usize = 0;
const TAKEN: usize = 1;

/// Memory that is not to be shared, or none.
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
        // Pairs with the store in `free`: an entry is free once its range is no longer in it.
        let taken = self
            .start
            .compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok()
    }

    /// The memory is about to be unmapped by its owner.
    pub(crate) fn free(&self) {
        // Pairs with the exchange in `take`, which takes the entry for another range.
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
        // Pairs with nothing: for people.
        let start = self.start.load(Ordering::Relaxed);
        write!(f, "{start:#x}")
    }
}

static LIST: List<Range> = List::new([const { Range::new() }; 64]);

/// From now on, children do not share this memory.
///
/// # Safety
/// The range is of whole pages that are mapped to be read and written, and stays mapped until the entry is free. Zeros
/// are valid for all who use it.
pub(crate) unsafe fn enlist(start: NonNull<u8>, bytes: usize) -> &'static Range {
    let entry = LIST.enlist(Range::take);
    // Pairs with nothing: the store that follows publishes it.
    entry.bytes.store(bytes, Ordering::Relaxed);
    // Pairs with the load in a child's copy of this memory, which then has the length, too.
    entry
        .start
        .store(start.as_ptr() as usize, Ordering::Release);
    entry
}

/// In a child, while it is alone: puts zeros in the place of all that is not to be shared.
pub(crate) fn leave_to_parent() {
    LIST.for_each(|Range { start, bytes }| {
        // Pairs with the store in `enlist`. The child may take the entry for memory of its own.
        let start = start.swap(FREE, Ordering::Acquire);
        if start == FREE || start == TAKEN {
            return;
        }
        // Pairs with nothing: see the swap.
        let bytes = bytes.load(Ordering::Relaxed);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: the range is mapped, and who enlisted it has promised that zeros are valid there. No other thread is there, and no
        // reference of this one's sees anything but valid values.
        let mapped = unsafe { libc::mmap(start as *mut libc::c_void, bytes, access, flags, -1, 0) };
        if mapped == libc::MAP_FAILED {
            // The child could write to what its parent takes for its own.
            // SAFETY: ends this process, as a handler of signals may.
            unsafe { libc::abort() };
        }
    });
}
