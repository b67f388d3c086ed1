use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::{Access, Error, MemoryRegion, Piece, ProtectionDomain, Remote, device_fence};

/// Memory that peers may read and write at any time. So it is never borrowed, only copied from and
/// to; what a peer writes meanwhile may be seen in part.
#[derive(Debug)]
pub struct Exposed {
    /// Goes before the words, which the device must have let go of by then.
    region: Option<MemoryRegion>,
    words: NonNull<[AtomicU64]>,
}

// SAFETY: the memory is its own, and is only touched by atomic operations.
unsafe impl Send for Exposed {}
// SAFETY: as above.
unsafe impl Sync for Exposed {}

impl ProtectionDomain {
    /// Zeroed memory of `bytes` bytes, rounded up to a multiple of 8, for peers, with any of
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
        // SAFETY: the memory is freed only when the region has been deregistered, and is only
        // touched by atomic operations.
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

    /// A place in it, for peers.
    ///
    /// # Errors
    ///
    /// The range is not in it.
    pub fn remote(&self, range: Range<usize>) -> Result<Remote, Error> {
        match &self.region {
            Some(region) => region.remote(range),
            // Not registered: made, but not handed out.
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
    /// They are not all in it.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        let from = self.cells(offset, into.len())?;
        for (byte, cell) in into.iter_mut().zip(from) {
            // Carries nothing: a completion or `load` did.
            *byte = cell.load(Ordering::Relaxed);
        }
        Ok(())
    }

    /// Copies bytes in. A peer sees them when it is told by a request that is posted afterwards.
    ///
    /// # Errors
    ///
    /// They are not all in it.
    pub fn write(&mut self, offset: usize, from: &[u8]) -> Result<(), Error> {
        let into = self.cells(offset, from.len())?;
        for (cell, byte) in into.iter().zip(from) {
            // Carries nothing: the post does.
            cell.store(*byte, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The word at an offset, which is a multiple of 8; sees what its writer wrote before it, as far
    /// as the device writes in order.
    ///
    /// # Errors
    ///
    /// It is not in it.
    pub fn load(&self, offset: usize) -> Result<u64, Error> {
        // SAFETY: the memory lives as long as this, and is only touched by atomic operations.
        let words = unsafe { self.words.as_ref() };
        let place = if offset.is_multiple_of(8) {
            words.get(offset / 8)
        } else {
            None
        };
        let word = place.ok_or_else(|| self.beyond(offset.saturating_add(8)))?;
        // Pairs with the device's write; the fence makes it an acquire.
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
        // SAFETY: within the memory, which lives as long as this and is only touched by atomic
        // operations. Those of another size are reads, as what writes has it exclusively.
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
            // SAFETY: nobody has the memory any more.
            Ok(()) => drop(unsafe { Box::from_raw(self.words.as_ptr()) }),
            Err(error) => tracing::warn!(%error, "exposed memory is never freed"),
        }
    }
}
