//! Memory that peers may access at any time.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::{Access, Error, MemoryRegion, Piece, ProtectionDomain, Remote, device_fence};

/// Memory that peers may read and write at any time. It is therefore never borrowed, only copied from and to. A
/// copy may contain only a part of what a peer writes at the same time.
#[derive(Debug)]
pub struct Exposed {
    /// Deregistered before `words` is freed. `None` only while it is being made or dropped.
    region: Option<MemoryRegion>,
    words: NonNull<[AtomicU64]>,
}

// SAFETY: it owns the memory, which does not refer to a thread.
unsafe impl Send for Exposed {}
// SAFETY: shared references access the memory only by atomic operations.
unsafe impl Sync for Exposed {}

impl ProtectionDomain {
    /// Allocates `bytes` bytes, rounded up to a multiple of 8 and zeroed, for peers to access by any of
    /// [`Access::REMOTE_WRITE`], [`Access::REMOTE_READ`] and [`Access::REMOTE_ATOMIC`].
    ///
    /// # Errors
    ///
    /// See [`ProtectionDomain::register`].
    pub fn expose(&self, bytes: usize, access: Access) -> Result<Exposed, Error> {
        let words: Box<[AtomicU64]> = (0..bytes.div_ceil(8)).map(|_| AtomicU64::new(0)).collect();
        let words = NonNull::from(Box::leak(words));
        let mut exposed = Exposed {
            region: None,
            words,
        };
        let start = words.cast::<u8>();
        let bytes = words.len() * 8;
        // SAFETY: the memory is freed only after the region has been deregistered, and this process accesses it
        // only by atomic operations.
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

    /// Loads the word at an offset, which is a multiple of 8. What the same peer wrote before that word is visible
    /// afterwards, provided that the device writes in order.
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
        // SAFETY: the range was checked to be within the memory, which lives as long as `self` and is accessed only
        // by atomic operations. Concurrent operations of another size are loads, because `write` takes `self`
        // exclusively.
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
        match deregistered {
            // SAFETY: `words` is from `Box::leak`, the device has released the memory, and `self` is being dropped.
            Ok(()) => drop(unsafe { Box::from_raw(self.words.as_ptr()) }),
            Err(error) => tracing::warn!(%error, "exposed memory is never freed"),
        }
    }
}
