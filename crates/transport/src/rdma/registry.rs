//! Memory of this process that RDMA devices reach where it lies.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;
use spark_ccl_verbs::{Access, Error, MemoryRegion, ProtectionDomain};

/// Which memory is registered, with each of some domains.
#[derive(Debug, Default)]
pub struct Registry {
    domains: Vec<ProtectionDomain>,
    blocks: RwLock<Blocks>,
    /// A link could not stop a device.
    is_out_of_control: AtomicBool,
}

#[derive(Debug, Default)]
struct Blocks {
    all: Vec<Block>,
    /// The number of the next one.
    next: u64,
}

/// Memory, and its regions in the order of the domains.
#[derive(Debug)]
struct Block {
    number: u64,
    start: u64,
    bytes: usize,
    regions: Vec<MemoryRegion>,
}

/// The names of a piece of registered memory in a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys {
    /// For requests of this process.
    pub local: u32,
    /// For requests of peers.
    pub remote: u32,
}

/// What is registered.
#[derive(Debug, Clone, Copy)]
pub enum Memory<'a> {
    /// Memory of this process.
    Host {
        /// Its first byte.
        start: NonNull<u8>,
        /// Its length.
        bytes: usize,
    },
    /// A dma-buf, of which `bytes` bytes from `offset` on have the addresses from `start` on.
    DmaBuf {
        /// The dma-buf.
        fd: BorrowedFd<'a>,
        /// Where in it the memory begins, in bytes.
        offset: u64,
        /// The address of the first byte; `offset` modulo the size of a page.
        start: NonNull<u8>,
        /// Its length.
        bytes: usize,
    },
}

impl Registry {
    /// Of no memory yet.
    pub fn new(domains: Vec<ProtectionDomain>) -> Self {
        Self {
            domains,
            blocks: RwLock::default(),
            is_out_of_control: AtomicBool::new(false),
        }
    }

    /// From now on, only deregistering keeps a device from memory that it was to write.
    pub(crate) fn lose_control(&self) {
        // Pairs with the load in `is_out_of_control`, in whatever thread gives memory back after the link was given up;
        // the lock of the link orders the two.
        self.is_out_of_control.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_out_of_control(&self) -> bool {
        // Pairs with the store in `lose_control`.
        self.is_out_of_control.load(Ordering::Relaxed)
    }

    /// Whether there is a device at all.
    pub fn has_devices(&self) -> bool {
        !self.domains.is_empty()
    }

    /// Lets the devices of all domains reach the memory, until the registration is
    /// [given up](Registration::deregister) or dropped.
    ///
    /// # Safety
    /// The memory stays where it is while it is registered. What is lent or borrowed by a link is left
    /// alone as [`LinkTx::lend`](crate::LinkTx::lend) and [`LinkRx::borrow`](crate::LinkRx::borrow) say, or
    /// until the link is [given up](crate::LinkTx::withdraw).
    ///
    /// # Errors
    /// When a device cannot; then none does.
    pub unsafe fn register(self: &Arc<Self>, memory: Memory<'_>) -> Result<Registration, Error> {
        let regions = self.domains.iter();
        // SAFETY: passed on from the caller; peers read only what is lent to them.
        let regions = regions.map(|domain| unsafe { memory.register(domain) });
        let regions = regions.collect::<Result<_, _>>()?;
        let (start, bytes) = memory.place();
        let mut blocks = self.blocks.write();
        let number = blocks.next;
        blocks.next += 1;
        blocks.all.push(Block {
            number,
            start,
            bytes,
            regions,
        });
        Ok(Registration {
            registry: Arc::clone(self),
            number,
            ended: OnceLock::new(),
        })
    }

    /// The names, in the domain of that place, of memory that is registered as a whole.
    pub fn keys(&self, start: u64, bytes: usize, domain: usize) -> Option<Keys> {
        let blocks = self.blocks.read();
        let block = blocks.all.iter().find(|block| block.holds(start, bytes))?;
        let region = block.regions.get(domain)?;
        Some(Keys {
            local: region.lkey(),
            remote: region.rkey(),
        })
    }

    fn take(&self, number: u64) -> Option<Block> {
        let mut blocks = self.blocks.write();
        let place = blocks.all.iter().position(|block| block.number == number)?;
        Some(blocks.all.swap_remove(place))
    }
}

impl Memory<'_> {
    /// # Safety
    /// See [`ProtectionDomain::register`].
    unsafe fn register(&self, domain: &ProtectionDomain) -> Result<MemoryRegion, Error> {
        // Peers read what is lent to them; devices here write what they read from peers.
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
        // SAFETY: passed on from the caller.
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
    /// How it was deregistered.
    ended: OnceLock<Result<(), Arc<Error>>>,
}

impl Registration {
    /// Whether the memory is still registered.
    pub fn is_in_force(&self) -> bool {
        let blocks = self.registry.blocks.read();
        blocks.all.iter().any(|block| block.number == self.number)
    }

    /// Whether a device may write to the memory as long as it is registered, although the links were given up: one
    /// could not be stopped.
    pub fn is_out_of_control(&self) -> bool {
        self.registry.is_out_of_control()
    }

    /// Deregisters the memory: afterwards no device and no peer reaches it. Again, it says what became of that
    /// the first time.
    ///
    /// # Errors
    /// A device still reaches it; the memory must never be used for anything else.
    pub fn deregister(&self) -> Result<(), Arc<Error>> {
        self.ended.get_or_init(|| self.end()).clone()
    }

    fn end(&self) -> Result<(), Arc<Error>> {
        let block = self.registry.take(self.number);
        let regions = block.map_or_else(Vec::new, |block| block.regions);
        let ended = regions.into_iter().map(MemoryRegion::deregister);
        // Each of them, whatever becomes of the others.
        ended.fold(Ok(()), Result::and).map_err(Arc::new)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Err(error) = self.deregister() {
            tracing::error!("registered memory is still within reach of a device: {error}");
        }
    }
}

#[cfg(test)]
mod tests;
