//! Memory that is allocated and freed outside of streams: device memory, and pinned host memory for
//! kernels.

use std::mem::ManuallyDrop;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use cudarc::driver::{CudaContext, result, sys};

use crate::current::make_current;
use crate::mapping::Mapping;
use crate::set_aside::{MemoryKind, Reusable, Unused};
use crate::stream::{OwnStream, relaxed};
use crate::{DmaBuf, Error, Feature, checked, require};

/// Memory of a device. The kernels of other GPUs can reach it, if the GPU is within
/// [reach](crate::reach_of).
///
/// Nothing may use it any more when it is dropped: see [`settle`](Self::settle). Dropping it waits
/// for no kernel.
#[derive(Debug)]
pub struct DeviceBlock {
    /// Dropped while the context is current.
    memory: ManuallyDrop<Memory>,
    context: Arc<CudaContext>,
}

#[derive(Debug)]
enum Memory {
    /// From `cuMemCreate`.
    Mapped(Mapping),
    /// From `cuMemAlloc`, if the device or the driver lacks `cuMemCreate`; set aside when it is
    /// dropped.
    Allocated(Reusable),
}

impl DeviceBlock {
    /// Allocates at least this many bytes, and waits until they are zero.
    ///
    /// # Errors
    /// There is not enough memory, or the driver fails.
    pub fn zeroed(context: &Arc<CudaContext>, bytes: usize) -> Result<Self, Error> {
        let block = Self::new(context, bytes)?;
        let stream = OwnStream::new(context)?;
        // SAFETY: the block has at least `bytes` bytes, and nothing else has its address. After an
        // error it is leaked, so nothing else ever uses it.
        if let Err(error) = unsafe { stream.fill_zeros(block.address(), bytes) } {
            std::mem::forget(block);
            return Err(error);
        }
        Ok(block)
    }

    /// Allocates at least this many bytes, with undefined contents. Enqueues nothing, and waits for
    /// no kernel.
    ///
    /// # Errors
    /// There is not enough memory, or the driver fails.
    pub fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Self, Error> {
        let device = make_current(context)?;
        let _relaxed = relaxed(device)?;
        let bytes = bytes.max(1);
        let memory = if Mapping::is_possible(context) {
            Memory::Mapped(Mapping::new(context, bytes)?)
        } else {
            Memory::Allocated(allocate(context, device, bytes)?)
        };
        Ok(Self {
            memory: ManuallyDrop::new(memory),
            context: Arc::clone(context),
        })
    }

    /// Maps a block that has been [exported](Self::export), by this process or by another one, for
    /// the GPU of this context only. Both are the same memory, which stays until both are dropped.
    ///
    /// # Errors
    /// The descriptor is not of an exported block, the block has fewer bytes (rounded up to whole
    /// pages of the GPU), or the driver fails.
    pub fn import(
        context: &Arc<CudaContext>,
        exported: BorrowedFd<'_>,
        bytes: usize,
    ) -> Result<Self, Error> {
        let device = make_current(context)?;
        let _relaxed = relaxed(device)?;
        require(Feature::Mapping)?;
        let memory = Memory::Mapped(Mapping::import(context, exported, bytes)?);
        Ok(Self {
            memory: ManuallyDrop::new(memory),
            context: Arc::clone(context),
        })
    }

    /// A descriptor by which other processes [import](Self::import) the block.
    ///
    /// # Errors
    /// [`Error::Export`] if the device or the driver does not support it; or the driver fails.
    pub fn export(&self) -> Result<OwnedFd, Error> {
        let device = make_current(&self.context)?;
        match &*self.memory {
            Memory::Mapped(mapping) => mapping.export(device),
            Memory::Allocated(_) => Err(Error::Export { device }),
        }
    }

    /// The first `bytes` bytes of the block as a dma-buf, by which RDMA devices register them. The
    /// block must stay for as long as they are registered.
    ///
    /// # Errors
    /// The block is shorter, the device or the driver exports no dma-bufs, or the driver fails.
    pub fn dma_buf(&self, bytes: usize) -> Result<DmaBuf, Error> {
        let device = make_current(&self.context)?;
        DmaBuf::of(device, self.address(), bytes)
    }

    /// The block's address on its device.
    pub fn address(&self) -> u64 {
        match &*self.memory {
            Memory::Mapped(mapping) => mapping.address(),
            Memory::Allocated(memory) => memory.start,
        }
    }

    /// Waits until everything that was enqueued in the block's context has run.
    ///
    /// # Errors
    /// Something has failed, or a graph is being captured in the context.
    pub fn settle(&self) -> Result<(), Error> {
        let device = make_current(&self.context)?;
        let _relaxed = relaxed(device)?;
        checked("cuCtxSynchronize", device, result::ctx::synchronize())
    }
}

impl Drop for DeviceBlock {
    fn drop(&mut self) {
        let Ok(device) = make_current(&self.context) else {
            return;
        };
        let _relaxed = relaxed(device);
        // SAFETY: only this line takes the memory, and `drop` runs once.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
    }
}

/// Memory from `cuMemAlloc`, or memory that was set aside. The context must be current.
fn allocate(context: &Arc<CudaContext>, device: usize, bytes: usize) -> Result<Reusable, Error> {
    if let Some(memory) = Reusable::take(context, MemoryKind::Device, bytes) {
        return Ok(memory);
    }
    // SAFETY: the context is current, so the driver allocates there. It writes one address, to a
    // variable of `malloc_sync`.
    let start = unsafe { result::malloc_sync(bytes) };
    Ok(Reusable::new(Unused {
        context: Arc::clone(context),
        kind: MemoryKind::Device,
        start: checked("cuMemAlloc", device, start)?,
        bytes,
        counts: true,
        owner: None,
    }))
}

/// 64-bit words in pinned host memory that kernels reach, all 0 at first. No kernel may still use
/// them when they are dropped, or while their [bytes](Self::bytes_mut) are borrowed. Their memory
/// is then set aside: see [`free_set_aside`](crate::free_set_aside).
#[derive(Debug)]
pub struct PinnedWords {
    start: *const AtomicU64,
    count: usize,
    /// Set aside when this is dropped.
    _memory: Reusable,
}

// SAFETY: the words are memory of the process, which any thread may use and free.
unsafe impl Send for PinnedWords {}
// SAFETY: a shared reference gives shared references to atomics, and an address.
unsafe impl Sync for PinnedWords {}

impl PinnedWords {
    /// Allocates words that the kernels of all devices reach, or takes words that were set aside.
    ///
    /// # Errors
    /// There is not enough memory, or the driver fails.
    pub fn new(context: &Arc<CudaContext>, count: usize) -> Result<Self, Error> {
        match Self::reused(context, count) {
            Some(words) => Ok(words),
            None => Self::allocate(context, count),
        }
    }

    /// Words that were set aside, if there are any of about this number.
    pub fn reused(context: &CudaContext, count: usize) -> Option<Self> {
        let bytes = count.checked_mul(size_of::<AtomicU64>())?;
        Reusable::take(context, MemoryKind::Pinned, bytes).map(|memory| Self::zeroed(memory, count))
    }

    fn allocate(context: &Arc<CudaContext>, count: usize) -> Result<Self, Error> {
        require(Feature::PinnedMemory)?;
        let device = make_current(context)?;
        let _relaxed = relaxed(device)?;
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        let bytes = count.saturating_mul(size_of::<AtomicU64>());
        // SAFETY: the context is current, so the driver allocates there. It writes one pointer, to
        // a variable of `malloc_host`.
        let start = unsafe { result::malloc_host(bytes, flags) };
        let start = checked("cuMemHostAlloc", device, start)?;
        let memory = Reusable::new(Unused {
            context: Arc::clone(context),
            kind: MemoryKind::Pinned,
            start: start.expose_provenance() as u64,
            bytes,
            counts: true,
            owner: None,
        });
        Ok(Self::zeroed(memory, count))
    }

    /// Zeroes `count` words in memory that has room for them.
    fn zeroed(memory: Reusable, count: usize) -> Self {
        let start: *mut AtomicU64 = ptr::with_exposed_provenance_mut(memory.start as usize);
        // SAFETY: `start` is the memory's first byte, which `malloc_host` has aligned for words and
        // given room for `count` of them. No reference to them exists: `memory` was passed by
        // value.
        unsafe { start.write_bytes(0, count) };
        Self {
            start,
            count,
            _memory: memory,
        }
    }

    /// The words, as this process sees them.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: `zeroed` has set `count` words from `start` on to 0. They live as long as `self`,
        // and both this process and kernels change them only atomically.
        unsafe { std::slice::from_raw_parts(self.start, self.count) }
    }

    /// The words' bytes, for calls of the operating system.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let bytes = self.count * size_of::<AtomicU64>();
        // SAFETY: `zeroed` has set these `bytes` bytes to 0. They live as long as `self`. This
        // borrow is the only reference of the process to them. No kernel uses them meanwhile: only
        // unsafe code starts kernels, and must let none run on them while they are borrowed, as
        // this type's documentation says.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast_mut().cast(), bytes) }
    }

    /// The address of the words for the kernels of a device.
    ///
    /// # Errors
    /// The driver fails.
    pub fn address_for(&self, context: &CudaContext) -> Result<u64, Error> {
        let device = make_current(context)?;
        let mut address = 0;
        // SAFETY: the driver writes one address to `address`, and only looks the words' address up.
        let status = unsafe {
            sys::cuMemHostGetDevicePointer_v2(&raw mut address, self.start.cast_mut().cast(), 0)
        };
        checked("cuMemHostGetDevicePointer", device, status.result())?;
        Ok(address)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering;

    use spark_ccl_testing::{Need, has};

    use super::*;

    #[test]
    fn an_exported_block_is_the_same_memory_where_it_is_imported() {
        const BYTES: usize = 5 << 20;
        if !has(Need::Gpu) {
            return;
        }
        let context = crate::context(0).unwrap();
        let stream = OwnStream::new(&context).unwrap();
        let written: Vec<u32> = (0..BYTES as u32 / 4).map(|place| place * 7 + 1).collect();
        let block = DeviceBlock::new(&context, BYTES).unwrap();
        let import =
            |exported: OwnedFd, bytes| DeviceBlock::import(&context, exported.as_fd(), bytes);
        let same = import(block.export().unwrap(), BYTES).unwrap();
        assert_ne!(same.address(), block.address());
        // It stays while an import has it.
        // SAFETY: block and values have `BYTES` bytes, and this test enqueues nothing else that
        // uses the block.
        unsafe { stream.write(block.address(), &written).unwrap() };
        let exported = block.export().unwrap();
        drop(block);
        let mut seen = vec![0; written.len()];
        // SAFETY: the import and `seen` have `BYTES` bytes, and any bytes are a number. The
        // write has ended, and this test enqueues no other.
        unsafe { stream.read(same.address(), &mut seen).unwrap() };
        assert!(seen == written);
        drop(same);
        let same = import(exported, BYTES).unwrap();
        seen.fill(0);
        // SAFETY: the import keeps the memory, which has the `BYTES` bytes of `seen`, and any bytes
        // are a number. The write has ended, and this test enqueues no other.
        unsafe { stream.read(same.address(), &mut seen).unwrap() };
        assert!(seen == written);
    }

    #[test]
    fn a_block_is_a_dma_buf_where_the_driver_exports_them() {
        if !has(Need::Gpu) {
            return;
        }
        let context = crate::context(0).unwrap();
        let block = DeviceBlock::new(&context, 3 << 20).unwrap();
        let traits = crate::rdma_traits(0).unwrap();
        let exported = block.dma_buf((3 << 20) - 100);
        if !(traits.dma_buf && traits.direct) {
            exported.unwrap_err();
            return;
        }
        // Blocks begin at a page of the host.
        assert_eq!(exported.unwrap().offset, 0);
        let longer = block.dma_buf(1 << 30).unwrap_err().to_string();
        assert!(longer.contains("1073741824 bytes at"), "{longer}");
        assert!(longer.contains("not in one allocation"), "{longer}");
    }

    #[test]
    fn a_fake_dma_buf_is_the_memory_of_its_block() {
        use std::os::unix::fs::FileExt;

        if !has(Need::FakeGpus) {
            return;
        }
        let context = crate::context(0).unwrap();
        let block = DeviceBlock::zeroed(&context, 1 << 20).unwrap();
        let exported = block.dma_buf(1 << 20).unwrap();
        let stream = OwnStream::new(&context).unwrap();
        // SAFETY: the block has room for two words behind its first 4096 bytes, and this test
        // enqueues nothing else that uses it.
        unsafe { stream.write(block.address() + 4096, &[7_u64, 8]).unwrap() };
        let file = std::fs::File::from(exported.descriptor);
        let mut seen = [0; 16];
        file.read_exact_at(&mut seen, exported.offset + 4096)
            .unwrap();
        assert_eq!(seen, [7_u64, 8].map(u64::to_ne_bytes).concat()[..]);
    }

    #[test]
    fn what_is_no_exported_block_is_not_imported() {
        if !has(Need::Gpu) {
            return;
        }
        let context = crate::context(0).unwrap();
        let file: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        let said = DeviceBlock::import(&context, file.as_fd(), 1 << 20).unwrap_err();
        assert!(
            said.to_string().contains("cuMemImportFromShareableHandle"),
            "{said}"
        );
        let block = DeviceBlock::new(&context, 1 << 20).unwrap();
        let longer = DeviceBlock::import(&context, block.export().unwrap().as_fd(), 1 << 30);
        let said = longer.unwrap_err().to_string();
        assert!(said.contains("cuMemMap"), "{said}");
        let said = DeviceBlock::new(&context, usize::MAX - 1)
            .unwrap_err()
            .to_string();
        assert!(said.contains("cuMem"), "{said}");
    }

    #[test]
    fn memory_is_zero_at_first() {
        if !has(Need::Gpu) {
            return;
        }
        let context = crate::context(0).unwrap();
        let block = DeviceBlock::zeroed(&context, 1 << 20).unwrap();
        let mut seen = vec![1_u8; 1 << 20];
        let stream = OwnStream::new(&context).unwrap();
        // SAFETY: the block has as many bytes as `seen`, and any bytes are a number, and this
        // test enqueues no write to it.
        unsafe { stream.read(block.address(), &mut seen).unwrap() };
        assert!(seen.iter().all(|byte| *byte == 0));

        let words = PinnedWords::new(&context, 3).unwrap();
        words.words()[2].store(7, Ordering::Relaxed);
        let mut seen = [1_u64; 3];
        // SAFETY: `seen` and `words` have three words, and any bytes are a number. Nothing
        // writes them until the read has ended: this thread waits for it.
        unsafe {
            stream
                .read(words.address_for(&context).unwrap(), &mut seen)
                .unwrap();
        };
        assert_eq!(seen, [0, 0, 7]);
    }

    #[test]
    fn bytes_of_pinned_words_are_theirs() {
        if !has(Need::Gpu) {
            return;
        }
        let context = crate::context(0).unwrap();
        let mut words = PinnedWords::new(&context, 2).unwrap();
        assert_eq!(words.bytes_mut(), [0; 16]);
        words.bytes_mut()[8..].copy_from_slice(&7_u64.to_ne_bytes());
        let mut seen = [1_u64; 2];
        let stream = OwnStream::new(&context).unwrap();
        // SAFETY: `seen` and `words` have two words, and any bytes are a number. Nothing writes
        // them until the read has ended: this thread waits for it.
        unsafe {
            stream
                .read(words.address_for(&context).unwrap(), &mut seen)
                .unwrap();
        };
        assert_eq!(seen, [0, 7]);
    }
}
