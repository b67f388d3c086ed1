//! Memory regions: memory registered with a device.

use std::fmt;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use crate::error::{failed, failed_as};
use crate::{Access, Error, Piece, ProtectionDomain, Remote, hints, raw};

/// Memory that a device may access. Dropping it deregisters the memory.
pub struct MemoryRegion {
    raw: NonNull<raw::ibv_mr>,
    /// Whether it has yet to be deregistered.
    registered: bool,
    domain: ProtectionDomain,
    start: u64,
    bytes: usize,
    access: Access,
}

// SAFETY: libibverbs' functions may be called by any thread, and the region does not refer to its
// thread.
unsafe impl Send for MemoryRegion {}
// SAFETY: shared references only read the region, and it changes only when its owner deregisters
// it.
unsafe impl Sync for MemoryRegion {}

impl ProtectionDomain {
    /// Registers memory of this process, so that the device may access it.
    ///
    /// # Safety
    ///
    /// The memory stays mapped as long as the region exists, which may be until the process ends.
    /// If `access` lets peers write, a peer with the region's remote key may do so at any time. As
    /// long as a peer may have the key, no reference to the memory exists, and this process
    /// accesses it only by atomics, volatile accesses or raw copies that allow for the peer's
    /// writes.
    ///
    /// # Errors
    ///
    /// The limit of locked memory is too low, the range is not mapped or not writable, or the
    /// device has no more regions.
    pub unsafe fn register(
        &self,
        start: NonNull<u8>,
        bytes: usize,
        access: Access,
    ) -> Result<MemoryRegion, Error> {
        let api = self.context().api();
        let iova = start.as_ptr() as u64;
        let memory = start.as_ptr().cast();
        // SAFETY: `self` keeps the protection domain alive. The memory stays mapped as long as the
        // region exists, and as long as peers may write there, nothing refers to it or conflicts
        // with them (this function's contract).
        let (call, raw) = unsafe {
            if access.contains(Access::RELAXED_ORDERING) {
                // `ibv_reg_mr` rejects flags that a device may ignore.
                let register = api.ibv_reg_mr_iova2()?;
                (
                    "ibv_reg_mr_iova2",
                    register(self.raw(), memory, bytes, iova, access.bits()),
                )
            } else {
                let flags = access.bits() as i32;
                (
                    "ibv_reg_mr",
                    (api.ibv_reg_mr)(self.raw(), memory, bytes, flags),
                )
            }
        };
        let subject = || format!("{bytes} bytes at {iova:#x} on {}", self.context().name());
        let raw = NonNull::new(raw).ok_or_else(|| {
            failed(call, subject(), |errno| {
                hints::register(errno, bytes, access)
            })
        })?;
        Ok(MemoryRegion::made(self, raw, (iova, bytes, access)))
    }

    /// Whether the device's driver registers dma-bufs: asks it to register none.
    ///
    /// # Errors
    ///
    /// libibverbs is too old, or the driver says neither.
    pub fn takes_dmabufs(&self) -> Result<bool, Error> {
        const NO_DESCRIPTOR: i32 = -1;
        let register = self.context().api().ibv_reg_dmabuf_mr()?;
        // SAFETY: `self` keeps the protection domain alive. Without a descriptor and without
        // length, no memory is registered.
        let raw = unsafe { register(self.raw(), 0, 0, 0, NO_DESCRIPTOR, 0) };
        if let Some(raw) = NonNull::new(raw) {
            drop(MemoryRegion::made(self, raw, (0, 0, Access::LOCAL_READ)));
            return Ok(true);
        }
        let subject = || self.context().name().to_owned();
        let error = failed("ibv_reg_dmabuf_mr", subject(), hints::dmabuf);
        match error.errno() {
            Some(libc::EBADF) => Ok(true),
            Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::ENOSYS) => Ok(false),
            _ => Err(error),
        }
    }

    /// Registers `bytes` bytes of a dma-buf, from `offset` on. A dma-buf may be memory of a GPU. In
    /// local and remote work requests, the region's addresses start at `iova`, which must equal
    /// `offset` modulo the page size.
    ///
    /// # Safety
    ///
    /// Every mapping of the dma-buf in this process stays as long as the region exists, which may
    /// be until the process ends. If `access` lets peers write, a peer with the region's remote key
    /// may do so at any time. As long as a peer may have the key, this process has no reference to
    /// the memory, and accesses it only by atomics, volatile accesses or raw copies that allow for
    /// the peer's writes.
    ///
    /// # Errors
    ///
    /// The driver, the kernel or rdma-core does not support dma-bufs ([`Error::is_unsupported`]),
    /// or the range is not in the dma-buf.
    pub unsafe fn register_dmabuf(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
        iova: u64,
        access: Access,
    ) -> Result<MemoryRegion, Error> {
        let register = self.context().api().ibv_reg_dmabuf_mr()?;
        let flags = access.bits() as i32;
        // SAFETY: `self` keeps the protection domain alive, and the borrow keeps the descriptor
        // open. Every mapping of the dma-buf stays as long as the region exists, and as long as
        // peers may write there, nothing refers to it or conflicts with them (this function's
        // contract).
        let raw = unsafe { register(self.raw(), offset, bytes, iova, fd.as_raw_fd(), flags) };
        let subject = || {
            format!(
                "{bytes} bytes at {offset} of a dma-buf on {}",
                self.context().name()
            )
        };
        let raw = NonNull::new(raw)
            .ok_or_else(|| failed("ibv_reg_dmabuf_mr", subject(), hints::dmabuf))?;
        Ok(MemoryRegion::made(self, raw, (iova, bytes, access)))
    }
}

impl MemoryRegion {
    /// A region that libibverbs has registered, with its address, length and access.
    fn made(
        domain: &ProtectionDomain,
        raw: NonNull<raw::ibv_mr>,
        (start, bytes, access): (u64, usize, Access),
    ) -> Self {
        Self {
            raw,
            registered: true,
            domain: domain.clone(),
            start,
            bytes,
            access,
        }
    }

    /// The address of its first byte, for work requests.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The access that it allows.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Its local key, for requests of this process.
    pub fn lkey(&self) -> u32 {
        // SAFETY: the region is deregistered only when `self` is consumed or dropped, so `raw` is
        // valid.
        unsafe { self.raw.as_ref() }.lkey
    }

    /// Its remote key, for requests of peers.
    pub fn rkey(&self) -> u32 {
        // SAFETY: the region is deregistered only when `self` is consumed or dropped, so `raw` is
        // valid.
        unsafe { self.raw.as_ref() }.rkey
    }

    /// The domain that it belongs to.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// A piece of it. `range` is relative to its first byte.
    ///
    /// # Errors
    ///
    /// The range is not in the region, or is longer than a piece may be.
    pub fn piece(&self, range: Range<usize>) -> Result<Piece, Error> {
        let addr = self.start + self.checked(&range)?;
        let bytes = u32::try_from(range.len()).map_err(|_| Error::Beyond {
            what: "the length of a piece",
            asked: range.len() as u64,
            most: u32::MAX.into(),
        })?;
        Ok(Piece::new(addr, bytes, self.lkey()))
    }

    /// The address of a range in it, for peers.
    ///
    /// # Errors
    ///
    /// The range is not in the region.
    pub fn remote(&self, range: Range<usize>) -> Result<Remote, Error> {
        let addr = self.start + self.checked(&range)?;
        Ok(Remote {
            addr,
            rkey: self.rkey(),
        })
    }

    /// The offset at which a range of the region starts.
    fn checked(&self, range: &Range<usize>) -> Result<u64, Error> {
        let (start, end) = (range.start, range.end.max(range.start));
        if end > self.bytes {
            let (asked, most) = (end as u64, self.bytes as u64);
            return Err(Error::Beyond {
                what: "the end of a range of a region",
                asked,
                most,
            });
        }
        Ok(start as u64)
    }

    /// Deregisters it. Afterwards neither the device nor a peer can access the memory.
    ///
    /// # Errors
    ///
    /// The device may still access the memory, which must never be reused or freed.
    pub fn deregister(mut self) -> Result<(), Error> {
        match self.release() {
            0 => Ok(()),
            errno => {
                let subject = format!("{} bytes on {}", self.bytes, self.domain.context().name());
                Err(failed_as("ibv_dereg_mr", errno, subject, hints::gone))
            }
        }
    }

    /// Deregisters it and returns the error number. It is not tried again after a failure.
    fn release(&mut self) -> i32 {
        self.registered = false;
        // SAFETY: `deregister` and `drop` call this at most once between them, as `registered`
        // shows, and do not use the region afterwards.
        unsafe { (self.domain.context().api().ibv_dereg_mr)(self.raw.as_ptr()) }
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("start", &format_args!("{:#x}", self.start))
            .field("bytes", &self.bytes)
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        if self.registered {
            let errno = self.release();
            if errno != 0 {
                spark_ccl_log::warn!(
                    "ibv_dereg_mr failed, the device still has the memory: errno {errno}, {self:?}"
                );
            }
        }
    }
}
