//! Registered memory: allocated by all ranks together, and mapped by every rank of the host.

use crate::error::Error;
use bytemuck::Pod;
use spark_ccl_compute::Element;
use spark_ccl_transport::memory::SharedMemory;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

/// The memory of one collective allocation: this rank's part and its mappings of the others'.
#[derive(Debug)]
pub(crate) struct Segment {
    /// Number of the allocation within its communicator, the same on every rank.
    pub(crate) id: u32,
    /// The communicator whose ranks index `maps`; to others this is ordinary memory.
    pub(crate) context: u64,
    rank: usize,
    /// By rank; `None` where the rank is on another host.
    maps: Vec<Option<SharedMemory>>,
    own: *mut u8,
}

// SAFETY: `own` points into `maps[rank]`, a mapping that lives as long as the segment; accesses to
// it go through `Registered` (Rust's borrows) or the engine (the contract of the buffer traits).
unsafe impl Send for Segment {}
// SAFETY: as above; nothing in a segment changes after its construction.
unsafe impl Sync for Segment {}

impl Segment {
    /// `maps` holds this rank's own memory at `rank`.
    pub(crate) fn new(
        (context, id): (u64, u32),
        rank: usize,
        own: SharedMemory,
        mut maps: Vec<Option<SharedMemory>>,
    ) -> Self {
        let base = own.as_ptr();
        maps[rank] = Some(own);
        Self {
            id,
            context,
            rank,
            maps,
            own: base,
        }
    }

    pub(crate) fn own_base(&self) -> *mut u8 {
        self.own
    }

    /// Where `rank`'s part is mapped here.
    pub(crate) fn base(&self, rank: usize) -> Option<*mut u8> {
        self.maps[rank].as_ref().map(SharedMemory::as_ptr)
    }

    /// Whether every rank of the communicator has its part mapped here.
    pub(crate) fn reaches_all(&self) -> bool {
        self.maps.iter().all(Option::is_some)
    }

    /// Cuts this rank's memory off from the other ranks, its contents kept where there is memory
    /// for a copy.
    pub(crate) fn fence(&self) {
        let Some(own) = &self.maps[self.rank] else {
            return;
        };
        let fenced = own.make_private().or_else(|error| {
            tracing::warn!("registered memory is lost after a failed operation: {error}");
            own.discard()
        });
        if let Err(error) = fenced {
            // A peer that wakes up could still write into memory that its owner takes for its own.
            tracing::error!("registered memory cannot be cut off from its peers: {error}");
            std::process::abort();
        }
    }
}

/// `n` elements of registered memory, from [`Communicator::alloc`](crate::Communicator::alloc).
///
/// Collectives whose buffers are registered on every rank (views of the same allocation at the same
/// place) take the zero-copy path where all ranks share a host: ranks reduce straight out of and
/// into each other's memory. Elsewhere it is as good as ordinary memory.
///
/// After a failed operation the memory is private to this rank. Its contents are kept, unless memory
/// is short.
pub struct Registered<T> {
    segment: Arc<Segment>,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Element> Registered<T> {
    pub(crate) fn new(segment: Segment, len: usize) -> Self {
        Self {
            segment: Arc::new(segment),
            len,
            element: PhantomData,
        }
    }

    pub(crate) fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// A part to send from.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the range is not within the memory.
    pub fn view(&self, range: Range<usize>) -> Result<RegisteredView<'_, T>, Error> {
        self.check(&range)?;
        Ok(RegisteredView {
            segment: &self.segment,
            start: range.start,
            len: range.len(),
            element: PhantomData,
        })
    }

    /// A part to receive into.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the range is not within the memory.
    pub fn view_mut(&mut self, range: Range<usize>) -> Result<RegisteredViewMut<'_, T>, Error> {
        self.check(&range)?;
        Ok(RegisteredViewMut {
            segment: &self.segment,
            start: range.start,
            len: range.len(),
            element: PhantomData,
        })
    }

    fn check(&self, range: &Range<usize>) -> Result<(), Error> {
        if range.start <= range.end && range.end <= self.len {
            return Ok(());
        }
        Err(Error::Invalid {
            operation: "view",
            problem: format!(
                "elements {}..{} of registered memory of {} elements",
                range.start, range.end, self.len
            ),
        })
    }
}

impl<T: Pod> Deref for Registered<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the mapping holds `len` elements of a Pod type (any bytes are valid), is aligned
        // to a page, and lives as long as `self.segment`. Peers write it only during an operation
        // that this value (or a unique borrow of it) was handed to, so not while `&self` lives.
        unsafe { std::slice::from_raw_parts(self.segment.own.cast(), self.len) }
    }
}

impl<T: Pod> DerefMut for Registered<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; peers read it only during such an operation, too.
        unsafe { std::slice::from_raw_parts_mut(self.segment.own.cast(), self.len) }
    }
}

impl<T> std::fmt::Debug for Registered<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registered")
            .field("id", &self.segment.id)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// A part of registered memory to send from.
#[derive(Debug)]
pub struct RegisteredView<'a, T> {
    pub(crate) segment: &'a Arc<Segment>,
    pub(crate) start: usize,
    pub(crate) len: usize,
    element: PhantomData<&'a [T]>,
}

/// A part of registered memory to receive into.
#[derive(Debug)]
pub struct RegisteredViewMut<'a, T> {
    pub(crate) segment: &'a Arc<Segment>,
    pub(crate) start: usize,
    pub(crate) len: usize,
    element: PhantomData<&'a mut [T]>,
}
