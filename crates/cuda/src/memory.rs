//! Memory that is allocated and freed outside of streams: device memory, and pinned host memory for
//! kernels.

use std::mem::ManuallyDrop;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use cudarc::driver::{CudaContext, result, sys};

use crate::mapping::Mapping;
use crate::stream::{OwnStream, make_current, relaxed};
use crate::{Error, Feature, checked, require};

/// Memory of a device. The kernels of other GPUs can reach it, if the GPU is within
/// [reach](crate::reach_of).
///
/// Nothing may use it any more when it is dropped: see [`settle`](Self::settle).
#[derive(Debug)]
pub struct DeviceBlock {
    /// Dropped in the context.
    memory: ManuallyDrop<Memory>,
    context: Arc<CudaContext>,
}

#[derive(Debug)]
enum Memory {
    /// From `cuMemCreate`.
    Mapped(Mapping),
    /// From `cuMemAlloc`, if the device or the driver lacks `cuMemCreate`: its address.
    Allocated(u64),
}

impl DeviceBlock {
    /// Allocates at least this many bytes, and waits until they are zero.
    ///
    /// # Errors
    /// There is not enough memory, or the driver fails.
    pub fn zeroed(context: &Arc<CudaContext>, bytes: usize) -> Result<Self, Error> {
        let block = Self::new(context, bytes)?;
        let stream = OwnStream::new(context)?;
        // SAFETY: the block has this many bytes, and nothing else has its address. After an error,
        // it is left set aside for good.
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
            // SAFETY: the context is current, so the driver allocates there. It writes one address, to a
            // variable of `malloc_sync`.
            let address = unsafe { result::malloc_sync(bytes) };
            Memory::Allocated(checked("cuMemAlloc", device, address)?)
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
    /// The descriptor is of no such block, the block has fewer bytes (rounded up to whole pages of
    /// the GPU), or the driver fails.
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

    /// Where it starts on its device.
    pub fn address(&self) -> u64 {
        match &*self.memory {
            Memory::Mapped(mapping) => mapping.address(),
            Memory::Allocated(address) => *address,
        }
    }

    /// Whether dropping it waits for no kernel: `cuMemFree` waits for all of the GPU's.
    pub fn is_freed_at_once(&self) -> bool {
        matches!(&*self.memory, Memory::Mapped(_))
    }

    /// Waits until all that was enqueued in its context has run.
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
        // SAFETY: this is the only place that takes it, and `drop` runs once.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Self::Allocated(address) = self {
            // SAFETY: `DeviceBlock::new` allocated it, and nothing frees it before. The call fails
            // only if the context has failed, which frees its memory.
            let _ = unsafe { result::free_sync(*address) };
        }
    }
}

/// 64-bit words in pinned host memory that kernels reach, all 0 at first. No kernel may still use them when they are
/// dropped, or while their [bytes](Self::bytes_mut) are borrowed.
#[derive(Debug)]
pub struct PinnedWords {
    start: *const AtomicU64,
    count: usize,
    context: Arc<CudaContext>,
}

// SAFETY: it is memory of the process, which any thread may use and free.
unsafe impl Send for PinnedWords {}
// SAFETY: a shared reference gives shared references to atomics, and an address.
unsafe impl Sync for PinnedWords {}

impl PinnedWords {
    /// Allocates words that the kernels of all devices reach.
    ///
    /// # Errors
    /// There is not enough memory, or the driver fails.
    pub fn new(context: &Arc<CudaContext>, count: usize) -> Result<Self, Error> {
        require(Feature::PinnedMemory)?;
        let device = make_current(context)?;
        let _relaxed = relaxed(device)?;
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the context is current, so the driver allocates there. It writes one pointer, to a variable
        // of `malloc_host`.
        let start = unsafe { result::malloc_host(count * size_of::<AtomicU64>(), flags) };
        let start: *mut AtomicU64 = checked("cuMemHostAlloc", device, start)?.cast();
        // SAFETY: the driver has just allocated room for `count` numbers, and nothing else has its
        // address.
        unsafe { start.write_bytes(0, count) };
        Ok(Self {
            start,
            count,
            context: Arc::clone(context),
        })
    }

    /// The words, as this process sees them.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: `new` allocated `count` numbers and set them to 0. They live as long as `self`;
        // both this process and kernels change them only atomically.
        unsafe { std::slice::from_raw_parts(self.start, self.count) }
    }

    /// Their bytes, for calls of the operating system.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let bytes = self.count * size_of::<AtomicU64>();
        // SAFETY: `new` allocated this many bytes and set them to 0. They live as long as `self`. This borrow is the only
        // reference of the process to them, and no kernel uses them meanwhile: a kernel is started by unsafe code only, which must not let
        // it run while the bytes are borrowed (this type's documentation).
        unsafe { std::slice::from_raw_parts_mut(self.start.cast_mut().cast(), bytes) }
    }

    /// Where they start for the kernels of a device.
    ///
    /// # Errors
    /// The driver fails.
    pub fn address_for(&self, context: &CudaContext) -> Result<u64, Error> {
        let device = make_current(context)?;
        let mut address = 0;
        // SAFETY: the driver writes one address to `address`; the memory was allocated with the flag
        // that this needs.
        let status = unsafe {
            sys::cuMemHostGetDevicePointer_v2(&raw mut address, self.start.cast_mut().cast(), 0)
        };
        checked("cuMemHostGetDevicePointer", device, status.result())?;
        Ok(address)
    }
}

impl Drop for PinnedWords {
    fn drop(&mut self) {
        let Ok(device) = make_current(&self.context) else {
            return;
        };
        let _relaxed = relaxed(device);
        // SAFETY: `new` allocated it, and nothing frees it before. If the call fails, it is leaked.
        let _ = unsafe { result::free_host(self.start.cast_mut().cast()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spark_ccl_testing::{Need, has};
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering;

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
        // SAFETY: both have this many bytes, and nothing else uses them.
        unsafe { stream.write(block.address(), &written).unwrap() };
        let exported = block.export().unwrap();
        drop(block);
        let mut seen = vec![0; written.len()];
        // SAFETY: as many bytes are mapped there, and nothing writes them.
        unsafe { stream.read(same.address(), &mut seen).unwrap() };
        assert!(seen == written);
        drop(same);
        let same = import(exported, BYTES).unwrap();
        seen.fill(0);
        // SAFETY: as many bytes are mapped there, and nothing writes them.
        unsafe { stream.read(same.address(), &mut seen).unwrap() };
        assert!(seen == written);
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
        // SAFETY: the block has this many bytes, and nothing writes there.
        unsafe { stream.read(block.address(), &mut seen).unwrap() };
        assert!(seen.iter().all(|byte| *byte == 0));

        let words = PinnedWords::new(&context, 3).unwrap();
        words.words()[2].store(7, Ordering::Relaxed);
        let mut seen = [1_u64; 3];
        // SAFETY: there are three words, and nothing writes them meanwhile.
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
        // SAFETY: there are two words, and nothing writes them meanwhile.
        unsafe {
            stream
                .read(words.address_for(&context).unwrap(), &mut seen)
                .unwrap();
        };
        assert_eq!(seen, [0, 7]);
    }
}
