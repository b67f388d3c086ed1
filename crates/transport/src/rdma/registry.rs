//! Registered memory of this process, which RDMA devices access in place.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use spark_ccl_log::{Held, RwLock};
use spark_ccl_verbs::{Access, Error, MemoryRegion, ProtectionDomain};

/// The memory that is registered, with each of several protection domains.
#[derive(Debug, Default)]
pub struct Registry {
    domains: Vec<ProtectionDomain>,
    blocks: RwLock<Blocks>,
    /// Set when a link could not stop a device.
    is_out_of_control: AtomicBool,
}

#[derive(Debug, Default)]
struct Blocks {
    all: Vec<Block>,
    /// The number of the next block.
    next: u64,
}

/// A range of memory, and its regions in the order of the domains.
#[derive(Debug)]
struct Block {
    number: u64,
    start: u64,
    bytes: usize,
    is_of_host: bool,
    regions: Vec<MemoryRegion>,
}

/// The keys of registered memory in a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys {
    /// For requests of this process.
    pub local: u32,
    /// For requests of peers.
    pub remote: u32,
    /// Whether the processor reads the memory, too: only then a request may be inline.
    pub is_of_host: bool,
}

/// Memory to register.
#[derive(Debug, Clone, Copy)]
pub enum RegisteredMemory<'a> {
    /// Memory of this process.
    Host {
        /// Its first byte.
        start: NonNull<u8>,
        /// Its length.
        bytes: usize,
    },
    /// Part of a dma-buf: its `bytes` bytes from `offset` on, which get the addresses from `start`
    /// on.
    DmaBuf {
        /// The dma-buf.
        fd: BorrowedFd<'a>,
        /// The offset of the memory in the dma-buf, in bytes.
        offset: u64,
        /// The address of the first byte; equal to `offset` modulo the page size.
        start: NonNull<u8>,
        /// Its length.
        bytes: usize,
    },
}

/// Who accesses registered memory, besides this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Peers read what is lent to them; devices of this process write what they read from peers.
    Lent,
    /// Devices of this process read it, to [put](crate::LinkTx::put) it into peers' memory.
    Source,
    /// Peers write it at any time, as it is [opened](crate::LinkTx::opening) to them.
    Target,
}

impl Registry {
    /// A registry without memory.
    pub fn new(domains: Vec<ProtectionDomain>) -> Self {
        Self {
            domains,
            blocks: RwLock::default(),
            is_out_of_control: AtomicBool::new(false),
        }
    }

    /// Notes that a device could not be stopped: from now on, only deregistering keeps it from
    /// writing to memory.
    pub(crate) fn lose_control(&self) {
        // Pairs with the load in `is_out_of_control`, in the thread that releases memory after the
        // link was withdrawn. The link's lock orders the two.
        self.is_out_of_control.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_out_of_control(&self) -> bool {
        // Pairs with the store in `lose_control`; the link's lock orders the two.
        self.is_out_of_control.load(Ordering::Relaxed)
    }

    /// Lets the devices of all domains access the memory, until the registration is
    /// [deregistered](Registration::deregister) or dropped.
    ///
    /// # Safety
    /// The memory stays mapped while it is registered. Memory that is lent or borrowed by a link is
    /// left alone as [`LinkTx::lend`](crate::LinkTx::lend) and
    /// [`LinkRx::borrow`](crate::LinkRx::borrow) require, or until the link is
    /// [withdrawn](crate::LinkTx::withdraw). Memory that peers write is accessed only by atomic
    /// operations, or after they have said by a flag in it that they leave it alone.
    ///
    /// # Errors
    /// When a device cannot register it; then it is registered with none.
    pub unsafe fn register(
        self: &Arc<Self>,
        memory: RegisteredMemory<'_>,
        reach: Reach,
    ) -> Result<Registration, Error> {
        let regions = self.domains.iter();
        // SAFETY: the memory stays mapped while it is registered, memory that a link lends or
        // borrows is left alone, or until the link is withdrawn, and so is what peers may write:
        // this function requires that.
        let regions = regions.map(|domain| unsafe { memory.register(domain, reach) });
        let regions = regions.collect::<Result<_, _>>()?;
        let (start, bytes) = memory.place();
        let mut blocks = self.blocks.write();
        let number = blocks.next;
        blocks.next += 1;
        blocks.all.push(Block {
            number,
            start,
            bytes,
            is_of_host: matches!(memory, RegisteredMemory::Host { .. }),
            regions,
        });
        Ok(Registration {
            registry: Arc::clone(self),
            number,
            ended: OnceLock::new(),
        })
    }

    /// The keys of a range, in the domain with this index; `None` unless one block contains the
    /// whole range.
    pub fn keys(&self, start: u64, bytes: usize, domain: usize) -> Option<Keys> {
        let blocks = self.blocks.read();
        let block = blocks.all.iter().find(|block| block.holds(start, bytes))?;
        let region = block.regions.get(domain)?;
        Some(Keys {
            local: region.lkey(),
            remote: region.rkey(),
            is_of_host: block.is_of_host,
        })
    }

    /// Why the devices do not all register dma-bufs; `None` if they do.
    pub fn lacks_dmabufs(&self) -> Option<String> {
        let lacks = |domain: &ProtectionDomain| match domain.takes_dmabufs() {
            Ok(true) => None,
            Ok(false) => Some(format!(
                "the driver of {} registers no dma-bufs",
                domain.context().name()
            )),
            Err(error) => Some(error.to_string()),
        };
        self.domains.iter().find_map(lacks)
    }

    fn take(&self, number: u64) -> Option<Block> {
        let mut blocks = self.blocks.write();
        let place = blocks.all.iter().position(|block| block.number == number)?;
        Some(blocks.all.swap_remove(place))
    }
}

impl RegisteredMemory<'_> {
    /// # Safety
    /// The memory, or that of the dma-buf, stays mapped as long as the region exists. If peers
    /// write it, this process accesses it as [`Registry::register`] requires.
    unsafe fn register(
        &self,
        domain: &ProtectionDomain,
        reach: Reach,
    ) -> Result<MemoryRegion, Error> {
        // Never relaxed ordering: what is polled must come after what was written before it.
        let access = match reach {
            Reach::Lent => Access::LOCAL_WRITE | Access::REMOTE_READ,
            Reach::Source => Access::LOCAL_READ,
            Reach::Target => Access::REMOTE_WRITE,
        };
        // SAFETY: the memory, or that of the dma-buf, stays mapped as long as the region exists,
        // and where `access` lets peers write there, this process accesses it by atomic operations
        // or not at all (this function's contract).
        unsafe {
            match *self {
                Self::Host { start, bytes } => domain.register(start, bytes, access),
                Self::DmaBuf {
                    fd,
                    offset,
                    start,
                    bytes,
                } => domain.register_dmabuf(fd, offset, bytes, start.as_ptr() as u64, access),
            }
        }
    }

    fn place(&self) -> (u64, usize) {
        let (Self::Host { start, bytes } | Self::DmaBuf { start, bytes, .. }) = *self;
        (start.as_ptr() as u64, bytes)
    }
}

impl Block {
    fn holds(&self, start: u64, bytes: usize) -> bool {
        let end = self.start + self.bytes as u64;
        (self.start..=end).contains(&start) && bytes as u64 <= end - start
    }
}

/// Memory that is registered. Dropping it deregisters the memory.
#[derive(Debug)]
pub struct Registration {
    registry: Arc<Registry>,
    number: u64,
    /// The result of deregistering it.
    ended: OnceLock<Result<(), Arc<Error>>>,
}

impl Registration {
    /// Whether the memory is still registered.
    pub fn is_in_force(&self) -> bool {
        let blocks = self.registry.blocks.read();
        blocks.all.iter().any(|block| block.number == self.number)
    }

    /// Whether a device may write to the memory as long as it is registered, even after the links
    /// were withdrawn, because it could not be stopped.
    pub fn is_out_of_control(&self) -> bool {
        self.registry.is_out_of_control()
    }

    /// Deregisters the memory: afterwards no device and no peer can access it. Later calls return
    /// the result of the first.
    ///
    /// # Errors
    /// A device can still access the memory, which must never be reused or freed.
    pub fn deregister(&self) -> Result<(), Arc<Error>> {
        let _held = Held::new();
        self.ended.get_or_init(|| self.end()).clone()
    }

    fn end(&self) -> Result<(), Arc<Error>> {
        let block = self.registry.take(self.number);
        let regions = block.map_or_else(Vec::new, |block| block.regions);
        let ended = regions.into_iter().map(MemoryRegion::deregister);
        // Deregisters every region, even if one fails.
        ended.fold(Ok(()), Result::and).map_err(Arc::new)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Err(error) = self.deregister() {
            spark_ccl_log::error!("registered memory is still within reach of a device: {error}");
        }
    }
}

#[cfg(test)]
mod tests;
