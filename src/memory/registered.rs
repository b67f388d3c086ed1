//! Registered memory: within reach of RDMA devices, and of the ranks of the host that map it. Knows
//! memory and who maps it; knows neither communicators nor engines.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use bytemuck::Pod;
use spark_ccl_fork::Owned;
use spark_ccl_transport::memory::SharedMemory;
use spark_ccl_transport::rdma::Registration;
use spark_ccl_types::Element;

use crate::error::Error;

/// Registered memory of this rank, and who else reaches it.
#[derive(Debug)]
pub(crate) struct Segment {
    own: *mut u8,
    /// How RDMA devices reach it, if they do.
    registration: Option<Owned<Registration>>,
    /// The holder of the memory, which ranks of this host map. Not dropped while a device reaches
    /// it.
    holder: ManuallyDrop<Holder>,
}

/// The owner of a segment's memory.
#[derive(Debug)]
pub(crate) enum Holder {
    /// All ranks have allocated it together, and map each other's.
    Shared(Allocation),
    /// Existing memory that was registered.
    Own(#[expect(dead_code, reason = "holds the memory")] Box<dyn Hold>),
    /// Its owner, which keeps it valid.
    Foreign,
}

/// The memory of one collective allocation: this rank's part, and those of the others on its host.
#[derive(Debug)]
pub(crate) struct Allocation {
    /// Number of the allocation within its communicator, the same on every rank.
    pub(crate) id: u32,
    /// This rank's handle of the communicator, whose ranks index `parts`. To other handles, also to
    /// those of other ranks in this process, this is ordinary memory.
    pub(crate) communicator: u64,
    pub(crate) rank: usize,
    /// The memory of all ranks of this host.
    pub(crate) memory: SharedMemory,
    /// By rank: where its part begins in the memory; `None` where the rank is on another host.
    pub(crate) parts: Vec<Option<usize>>,
    /// The length of each part, in bytes.
    pub(crate) bytes: usize,
}

/// Memory that is only kept alive.
pub(crate) trait Hold: Send + Sync + std::fmt::Debug {}

// SAFETY: `own` points into memory that `holder` keeps as long as the segment lives. A thread reads
// or writes there only by a borrow of a `Registered`, or as the engine: during a call that has that
// value or a borrow of it, or an untyped call, whose caller lets nothing else use the memory.
unsafe impl Send for Segment {}
// SAFETY: nothing in a segment changes after its construction. A thread reads or writes the memory
// behind `own` only by a borrow of a `Registered`, or as the engine: during a call that has that
// value or a borrow of it, or an untyped call, whose caller lets nothing else use the memory.
unsafe impl Sync for Segment {}

impl Segment {
    /// The memory from `own` on, which lives as long as `holder`.
    pub(crate) fn new(own: *mut u8, registration: Option<Registration>, holder: Holder) -> Self {
        Self {
            own,
            registration: registration.map(Owned::new),
            holder: ManuallyDrop::new(holder),
        }
    }

    pub(crate) fn own_base(&self) -> *mut u8 {
        self.own
    }

    /// The allocation, if it is one.
    pub(crate) fn allocation(&self) -> Option<&Allocation> {
        match &*self.holder {
            Holder::Shared(allocation) => Some(allocation),
            _ => None,
        }
    }

    /// Whether RDMA devices reach it.
    pub(crate) fn is_within_reach_of_devices(&self) -> bool {
        let registration = self.registration.as_ref();
        registration.is_some_and(|registration| registration.is_in_force())
    }

    /// Cuts this rank's memory off from RDMA devices, for good.
    pub(crate) fn unplug(&self) {
        let registration = self.registration.as_ref();
        let ended = registration.map(|registration| registration.deregister());
        if let Some(Err(error)) = ended {
            if registration.is_some_and(|registration| registration.is_out_of_control()) {
                // The device could write into memory that its owner takes for its own.
                spark_ccl_log::error!("registered memory cannot be cut off from a device: {error}");
                spark_ccl_log::abort();
            }
            // No link asks a device for anything any more, so it is only held for nothing.
            spark_ccl_log::warn!("registered memory cannot be taken from a device: {error}");
        }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // To a forked child the devices mean nothing: what they reach is its parent's memory.
        let registration = self.registration.as_ref();
        let own = registration.filter(|registration| registration.process().is_here());
        if let Some(Err(error)) = own.map(|registration| registration.deregister()) {
            spark_ccl_log::warn!("registered memory is never freed: {error}");
            return;
        }
        // SAFETY: this runs once, and no field's own drop uses the holder after it. No device of
        // this process reaches the memory: it was deregistered above, or never registered here.
        unsafe { ManuallyDrop::drop(&mut self.holder) };
    }
}

impl Allocation {
    /// Where `rank`'s part is mapped here.
    pub(crate) fn base(&self, rank: usize) -> Option<*mut u8> {
        let start = self.parts[rank]?;
        Some(self.memory.as_ptr().wrapping_add(start))
    }

    /// Whether every rank of the communicator has its part mapped here.
    pub(crate) fn reaches_all(&self) -> bool {
        self.parts.iter().all(Option::is_some)
    }

    /// Cuts this rank's memory off from the other ranks. Keeps its contents if there is memory for
    /// a copy.
    pub(crate) fn fence(&self) {
        let Some(start) = self.parts[self.rank] else {
            return;
        };
        let own = start..start + self.bytes;
        let fenced = self.memory.make_private(own.clone()).or_else(|error| {
            spark_ccl_log::warn!("registered memory is lost after a failed operation: {error}");
            self.memory.discard(own)
        });
        if let Err(error) = fenced {
            // A peer that wakes up could still write into memory that its owner takes for its own.
            spark_ccl_log::error!("registered memory cannot be cut off from its peers: {error}");
            spark_ccl_log::abort();
        }
    }
}

/// `n` elements of registered memory, from [`Communicator::alloc`](crate::Communicator::alloc) or
/// [`Communicator::register`](crate::Communicator::register).
///
/// Collectives whose buffers are registered take the zero-copy path. Where all ranks share a host,
/// they reduce straight out of and into each other's memory, if the buffers are views of the same
/// allocation at the same place on every rank. Each rank must pass its own: memory that another
/// rank of the same process, or another communicator, has allocated is ordinary memory in a call.
/// Over RDMA, devices read data that is not reduced straight from the sender's registered memory,
/// and write it straight to the receiver's memory if that is registered, too. Over TCP, registered
/// memory works like ordinary memory.
///
/// After a failed operation the memory is ordinary: no other rank writes to it any more, and none
/// takes what it reads there for a result. Parts that no rank wrote in the operation are kept,
/// unless memory is short.
///
/// A forked child does not share memory from `alloc` with its parent. It finds zeros there, which
/// are its own.
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

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the elements begin, for interfaces that take pointers. No reference to the elements is
    /// made, so calls that are under way may use them meanwhile. They can be read and written
    /// through the pointer under the rules of
    /// [`Communicator::run_untyped`](crate::Communicator::run_untyped), as long as this value or a
    /// call has the memory.
    pub fn as_mut_ptr(&self) -> *mut T {
        self.segment.own.cast()
    }

    /// A part to send from. In a collective, all ranks pass the same part of the same allocation:
    /// if not, it is a mismatch, whatever its size, where the ranks share a host.
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

    /// A part to receive into, the same on all ranks, as for [`view`](Self::view).
    ///
    /// # Errors
    /// [`Error::Invalid`] when the range is not within the memory.
    pub fn view_mut(&mut self, range: Range<usize>) -> Result<RegisteredViewMut<'_, T>, Error> {
        self.check(&range)?;
        Ok(self.part_mut(range))
    }

    /// Two parts to receive into: the elements before `mid`, and the rest.
    ///
    /// ```
    /// # let comm = spark_ccl::Communicator::local(1)?.remove(0);
    /// use spark_ccl::RedOp;
    ///
    /// let mut gradients = comm.alloc::<f32>(100)?;
    /// let (weights, biases) = gradients.split_at_mut(90)?;
    /// comm.scope(|scope| {
    ///     comm.all_reduce_in_place(weights, RedOp::Avg).start_in(scope)?;
    ///     comm.all_reduce_in_place(biases, RedOp::Avg).start_in(scope)?;
    ///     Ok::<(), spark_ccl::Error>(())
    /// })?;
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] when `mid` is greater than the number of elements.
    pub fn split_at_mut(
        &mut self,
        mid: usize,
    ) -> Result<(RegisteredViewMut<'_, T>, RegisteredViewMut<'_, T>), Error> {
        let rest = mid..self.len.max(mid);
        self.check(&rest)?;
        Ok((self.part_mut(0..mid), self.part_mut(rest)))
    }

    /// A part that was checked. No other live part may share elements with it.
    fn part_mut(&self, range: Range<usize>) -> RegisteredViewMut<'_, T> {
        RegisteredViewMut {
            segment: &self.segment,
            start: range.start,
            len: range.len(),
            element: PhantomData,
        }
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
        // SAFETY: the memory holds `len` elements of a Pod type (any bytes are valid), is aligned
        // for it, and lives as long as `self.segment`. Peers and devices write it only during a
        // call that has this value or a unique borrow of it, so not while `&self` lives. They also
        // do so during an untyped call, whose caller lets nothing else use the memory, so not
        // `&self` either.
        unsafe { std::slice::from_raw_parts(self.segment.own.cast(), self.len) }
    }
}

impl<T: Pod> DerefMut for Registered<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: the memory holds `len` elements of a Pod type, is aligned for it, and lives as
        // long as `self.segment`; no other handle of this rank reaches it. Peers and devices read
        // or write it only during a call that has this value or a borrow of it, so not while `&mut
        // self` lives. They also do so during an untyped call, whose caller lets nothing else use
        // the memory, so not `&mut self` either.
        unsafe { std::slice::from_raw_parts_mut(self.segment.own.cast(), self.len) }
    }
}

impl<T> std::fmt::Debug for Registered<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registered")
            .field("at", &self.segment.own)
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
