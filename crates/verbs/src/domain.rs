use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::failed;
use crate::pair::{Pair, Reset};
use crate::{Access, Context, Error, MemoryRegion, PairOptions, QueuePair, hints, raw};

/// A domain of a device: its queue pairs reach its memory regions, and no others.
/// Clones are the same; it goes with the last of them and of what was made in it.
#[derive(Clone)]
pub struct ProtectionDomain(pub(crate) Arc<Domain>);

pub(crate) struct Domain {
    pub(crate) context: Context,
    pub(crate) raw: NonNull<raw::ibv_pd>,
}

// SAFETY: libibverbs' functions may be called by several threads on the same domain.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl ProtectionDomain {
    pub(crate) fn new(context: &Context) -> Result<Self, Error> {
        // SAFETY: the context is open.
        let raw = NonNull::new(unsafe { (context.api().ibv_alloc_pd)(context.raw()) })
            .ok_or_else(|| failed("ibv_alloc_pd", context.name(), hints::resources))?;
        let context = context.clone();
        Ok(Self(Arc::new(Domain { context, raw })))
    }

    /// The device.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Registers memory of this process, so that the device may reach it.
    ///
    /// # Safety
    ///
    /// While the region lives, which may be as long as the process, the memory stays mapped. If
    /// `access` is remote, peers read and write it whenever they like: it is only touched through
    /// atomics, volatile accesses or raw copies that mind this, and nothing borrows it.
    ///
    /// # Errors
    ///
    /// The memory limit is too low, the range is not mapped or not writable, or the device has no
    /// more regions.
    pub unsafe fn register(
        &self,
        start: NonNull<u8>,
        bytes: usize,
        access: Access,
    ) -> Result<MemoryRegion, Error> {
        // SAFETY: as the caller says.
        unsafe { MemoryRegion::of_host(self, start, bytes, access) }
    }

    /// Registers `bytes` bytes from `offset` on of a dma-buf, which may be memory of a GPU. Its
    /// addresses, for work requests here and at peers, start at `iova`, which must be `offset`
    /// modulo the page size.
    ///
    /// # Safety
    ///
    /// As for [`ProtectionDomain::register`], with regard to all that maps the dma-buf.
    ///
    /// # Errors
    ///
    /// The driver, the kernel or rdma-core cannot ([`Error::is_unsupported`]), or the range is not
    /// in the dma-buf.
    pub unsafe fn register_dmabuf(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
        iova: u64,
        access: Access,
    ) -> Result<MemoryRegion, Error> {
        // SAFETY: as the caller says.
        unsafe { MemoryRegion::of_dmabuf(self, fd, offset, bytes, iova, access) }
    }

    /// A reliable connected queue pair, not connected yet.
    ///
    /// # Errors
    ///
    /// More is asked than the device has.
    pub fn queue_pair(&self, options: &PairOptions) -> Result<QueuePair<Reset>, Error> {
        Pair::create(self, options).map(QueuePair::new)
    }

    pub(crate) fn raw(&self) -> *mut raw::ibv_pd {
        self.0.raw.as_ptr()
    }
}

impl PartialEq for ProtectionDomain {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ProtectionDomain {}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProtectionDomain")
            .field(&self.0.context.name())
            .finish()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: whatever was made in the domain holds it, so nothing is left.
        let errno = unsafe { (self.context.api().ibv_dealloc_pd)(self.raw.as_ptr()) };
        if errno != 0 {
            tracing::warn!(device = self.context.name(), errno, "ibv_dealloc_pd failed");
        }
    }
}
