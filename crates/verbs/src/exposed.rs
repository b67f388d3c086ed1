//! Memory that peers may access at any time.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::{Access, Error, MemoryRegion, Piece, ProtectionDomain, Remote, device_fence};

/// Memory that peers may read and write at any time. So it is never borrowed, only copied from and
/// to. A copy may contain only a part of a peer's concurrent write.
pub struct Exposed {
    /// Deregistered before `owner` is dropped. `None` only while it is being made or dropped.
    region: Option<MemoryRegion>,
    words: NonNull<[AtomicU64]>,
    /// Keeps the memory mapped. `None` only while it is being dropped.
    owner: Option<Box<dyn Owner>>,
}

/// Keeps memory mapped as long as it lives.
trait Owner: Send + Sync {}

impl<T: Send + Sync> Owner for T {}

// SAFETY: it owns the memory, which does not refer to a thread, and its other fields are `Send`.
unsafe impl Send for Exposed {}
// SAFETY: shared references access the memory only by atomic operations, and its other fields are
// `Sync`.
unsafe impl Sync for Exposed {}

impl fmt::Debug for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Leaves out the owner, which may show the memory: peers write to it.
        let mut shown = f.debug_struct("Exposed");
        shown.field("region", &self.region).finish_non_exhaustive()
    }
}

impl ProtectionDomain {
    /// Allocates `bytes` bytes, rounded up to a multiple of 8 and zeroed, for peers to access by
    /// any of [`Access::REMOTE_WRITE`], [`Access::REMOTE_READ`] and [`Access::REMOTE_ATOMIC`].
    ///
    /// # Errors
    ///
    /// See [`ProtectionDomain::register`].
    pub fn expose(&self, bytes: usize, access: Access) -> Result<Exposed, Error> {
        let mut owner: Vec<AtomicU64> = (0..bytes.div_ceil(8)).map(|_| AtomicU64::new(0)).collect();
        let words = NonNull::from(owner.as_mut_slice());
        // SAFETY: these are the vector's words, which stay where they are until it is dropped, and
        // nothing else has it.
        unsafe { self.expose_owned(words, owner, access) }
    }

    /// The same with memory that `owner` keeps mapped. `owner` is dropped only after the memory has
    /// been deregistered, or never if that fails.
    ///
    /// # Safety
    ///
    /// The words are aligned, initialised, and mapped for reads and writes until `owner` is
    /// dropped, wherever that is moved. Until then no reference to them is used, and nothing in
    /// this process accesses them but by atomic operations.
    ///
    /// # Errors
    ///
    /// See [`ProtectionDomain::register`].
    pub unsafe fn expose_owned(
        &self,
        words: NonNull<[AtomicU64]>,
        owner: impl Send + Sync + 'static,
        access: Access,
    ) -> Result<Exposed, Error> {
        let mut exposed = Exposed {
            region: None,
            words,
            owner: Some(Box::new(owner)),
        };
        let (start, bytes) = (words.cast::<u8>(), exposed.bytes());
        // SAFETY: the memory stays mapped until `owner` is dropped (this function's contract),
        // which `Exposed` does only after the region has been deregistered. It accesses the memory
        // by atomic operations alone, and nothing else in this process accesses it otherwise (the
        // contract again).
        let region = unsafe { self.register(start, bytes, access | Access::LOCAL_WRITE) }?;
        exposed.region = Some(region);
        Ok(exposed)
    }
}

impl Exposed {
    /// Its length.
    pub fn bytes(&self) -> usize {
        self.words.len() * 8
    }

    /// The address of a range in it, for peers.
    ///
    /// # Errors
    ///
    /// The range is not in it.
    pub fn remote(&self, range: Range<usize>) -> Result<Remote, Error> {
        match &self.region {
            Some(region) => region.remote(range),
            // Cannot happen: it is registered before it is handed out.
            None => Err(self.beyond(range.end)),
        }
    }

    /// A piece of it, for work requests of this process.
    ///
    /// # Errors
    ///
    /// The range is not in it, or is longer than a piece may be.
    pub fn piece(&self, range: Range<usize>) -> Result<Piece, Error> {
        match &self.region {
            Some(region) => region.piece(range),
            None => Err(self.beyond(range.end)),
        }
    }

    /// Copies bytes out.
    ///
    /// # Errors
    ///
    /// The range is not in it.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        let from = self.cells(offset, into.len())?;
        for (byte, cell) in into.iter_mut().zip(from) {
            // Pairs with nothing: a completion or `load` has acquired the peer's writes.
            *byte = cell.load(Ordering::Relaxed);
        }
        Ok(())
    }

    /// Copies bytes in. A peer is sure to see them only after a request that is posted afterwards.
    ///
    /// # Errors
    ///
    /// The range is not in it.
    pub fn write(&mut self, offset: usize, from: &[u8]) -> Result<(), Error> {
        let into = self.cells(offset, from.len())?;
        for (cell, byte) in into.iter().zip(from) {
            // Pairs with nothing: the post publishes it.
            cell.store(*byte, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Loads the word at an offset, which is a multiple of 8. Everything that the same peer wrote
    /// before that word is visible afterwards, provided that the device writes in order.
    ///
    /// # Errors
    ///
    /// The word is not in it.
    pub fn load(&self, offset: usize) -> Result<u64, Error> {
        // SAFETY: the memory lives as long as `self`, and is accessed only by atomic operations.
        let words = unsafe { self.words.as_ref() };
        let place = if offset.is_multiple_of(8) {
            words.get(offset / 8)
        } else {
            None
        };
        let word = place.ok_or_else(|| self.beyond(offset.saturating_add(8)))?;
        // Pairs with the device's write; the fence makes this an acquire.
        let value = word.load(Ordering::Relaxed);
        device_fence();
        Ok(value)
    }

    fn cells(&self, offset: usize, bytes: usize) -> Result<&[AtomicU8], Error> {
        let end = offset.saturating_add(bytes);
        if end > self.bytes() {
            return Err(self.beyond(end));
        }
        let start = self.words.cast::<AtomicU8>();
        // SAFETY: the range was checked to be within the memory, which lives as long as `self` and
        // is accessed only by atomic operations. Concurrent operations of another size are loads,
        // because `write` takes `self` exclusively.
        Ok(unsafe { std::slice::from_raw_parts(start.as_ptr().add(offset), bytes) })
    }

    fn beyond(&self, end: usize) -> Error {
        let (asked, most) = (end as u64, self.bytes() as u64);
        Error::Beyond {
            what: "the end of a range of exposed memory",
            asked,
            most,
        }
    }
}

impl Drop for Exposed {
    fn drop(&mut self) {
        let deregistered = self.region.take().map_or(Ok(()), MemoryRegion::deregister);
        if let Err(error) = deregistered {
            spark_ccl_log::warn!("exposed memory is never freed: {error}");
            std::mem::forget(self.owner.take());
        }
    }
}
